"""Vector operations written as LLVM instructions, because LLVM does not derive them from loops by itself.

They add samples of noise from a table (`dordis.privacy.skellam_noise`).  A *cell* is one of 2^16 equally likely
numbers, which the table maps to a *node*, a multiple H w of a width w, where H is the number of the node.  A sample is
its cell's node, plus a distance below w if w > 1.  The law of this distance is a triangle, the *hat* of the node.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

LANES = 16
"""Number of samples that one call of `add_nodes` or `add_hats` adds."""
STAIR = 16
"""Number of cells in a *stair*, a 32-bit word of the table that maps cells to the numbers of their nodes.

The upper half of the word is the node number of the stair's first cell, cell 0.  For i from 1 to 15, bit i of the lower
half is 1 if the node number of cell i is one more than that of cell i - 1, and 0 if both are equal; bit 0 is always 0.
The table fits the first-level cache.
"""

_BIT, _SHORT, _WORD, _ADDRESS = (ir.IntType(bits) for bits in (1, 16, 32, 64))


@intrinsic
def count_trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Return the number of zero bits below the lowest set bit of a uint64; 64 if no bit is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


@intrinsic
def compare_at_least(typing_context: Any, values: Any, at: Any, limit: Any) -> Any:
    """Return a 64-bit word whose bit i, from 0 to 63, says whether values[at + i] >= limit; values are uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (base,) = _pointers(context, builder, signature, arguments, 1)
        shorts = ir.VectorType(_SHORT, 64)
        place = builder.bitcast(builder.gep(base, [arguments[1]]), shorts.as_pointer())
        nothing = ir.Constant(shorts, ir.Undefined)
        first = builder.insert_element(nothing, arguments[2], ir.Constant(_WORD, 0))
        limits = builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_WORD, 64), [0] * 64))
        return builder.bitcast(builder.icmp_unsigned(">=", builder.load(place, align=2), limits), _ADDRESS)

    return types.uint64(values, types.intp, types.uint16), generate


@intrinsic
def add_nodes(typing_context: Any, acc: Any, cells: Any, stairs: Any, flip: Any, at: Any) -> Any:
    """Add the node numbers of cells[at : at + 16] to acc[at : at + 16]; subtract them if flip is 2^32 - 1 instead of 0.

    `stairs` is the table that maps cells to nodes (see `STAIR`).  The compiler could not vectorise a loop for this,
    because it must assume that acc overlaps the table.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, index, table = _pointers(context, builder, signature, arguments, 3)
        drawn = _nodes(builder, table, _shorts(builder, index, arguments[4]))
        return _add(context, builder, sums, arguments[4], drawn, arguments[3])

    return types.void(acc, cells, stairs, types.uint32, types.intp), generate


@intrinsic
def add_hats(
    typing_context: Any, acc: Any, cells: Any, hats: Any, stairs: Any, log_width: Any, flip: Any, at: Any
) -> Any:
    """Add or subtract samples at .. at + 15, as `add_nodes` does.  Sample i is w * H + L1 - L2, with w = 2^log_width.

    H is the node number of cells[i]; L1 and L2 are the low and the high byte of hats[i], both modulo w.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, index, pairs, table = _pointers(context, builder, signature, arguments, 4)
        k = _spread(builder, arguments[4], _WORD)
        node = builder.shl(_nodes(builder, table, _shorts(builder, index, arguments[6])), k)
        below = builder.sub(builder.shl(_constant(1, _WORD), k), _constant(1, _WORD))
        pair = _shorts(builder, pairs, arguments[6])
        plus = builder.and_(pair, below)
        minus = builder.and_(builder.lshr(pair, _constant(8, _WORD)), below)
        drawn = builder.sub(builder.add(node, plus), minus)
        return _add(context, builder, sums, arguments[6], drawn, arguments[5])

    return types.void(acc, cells, hats, stairs, types.uint32, types.uint32, types.intp), generate


@intrinsic
def count_below(typing_context: Any, rows: Any, row: Any, key: Any) -> Any:
    """Return how many of the last 14 of the 16 numbers in row `row` are below `key`; 255 if any equals `key`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (table,) = _pointers(context, builder, signature, arguments, 1)
        offset = builder.mul(arguments[1], ir.Constant(_ADDRESS, LANES))
        place = builder.bitcast(builder.gep(table, [offset]), ir.VectorType(_SHORT, LANES).as_pointer())
        values, keys = builder.load(place, align=2), _spread(builder, arguments[2], _SHORT)
        counted = ir.Constant(_SHORT, 0xFFFC)
        below = builder.and_(builder.bitcast(builder.icmp_unsigned("<", values, keys), _SHORT), counted)
        equal = builder.and_(builder.bitcast(builder.icmp_unsigned("==", values, keys), _SHORT), counted)
        any_equal = builder.icmp_unsigned("!=", equal, ir.Constant(_SHORT, 0))
        return builder.zext(builder.select(any_equal, ir.Constant(_SHORT, 255), builder.ctpop(below)), _ADDRESS)

    return types.int64(rows, types.int64, types.uint16), generate


def _pointers(context: Any, builder: Any, signature: Any, arguments: Any, count: int) -> list[Any]:
    """Return the data pointers of the first `count` arguments, which are arrays."""
    arrays = zip(signature.args[:count], arguments[:count], strict=True)
    return [context.make_array(kind)(context, builder, value=value).data for kind, value in arrays]


def _constant(value: int, lane: Any) -> Any:
    return ir.Constant(ir.VectorType(lane, LANES), [value] * LANES)


def _spread(builder: Any, value: Any, lane: Any) -> Any:
    """Return a vector with the same value in every lane."""
    nothing = ir.Constant(ir.VectorType(lane, LANES), ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, nothing, _constant(0, _WORD))


def _shorts(builder: Any, base: Any, at: Any) -> Any:
    """Load 16 values of uint16 and widen them to 32 bits."""
    place = builder.bitcast(builder.gep(base, [at]), ir.VectorType(_SHORT, LANES).as_pointer())
    return builder.zext(builder.load(place, align=2), ir.VectorType(_WORD, LANES))


def _nodes(builder: Any, table: Any, cells: Any) -> Any:
    """Return the node numbers of 16 cells, from the `table` of stairs (`STAIR`).

    The number of a cell's node is the upper half of its stair plus the number of ones among bits 0 to i of the lower
    half, where i is the cell's index in the stair.
    """
    words, flags = ir.VectorType(_WORD, LANES), ir.VectorType(_BIT, LANES)
    tables = _spread(builder, table, table.type)
    # Gathers with one base address and 32-bit offsets are faster on x86 than gathers with 64-bit addresses.
    places = builder.gep(tables, [builder.udiv(cells, _constant(STAIR, _WORD))], source_etype=_WORD)
    gather = builder.module.declare_intrinsic(
        f"llvm.masked.gather.v{LANES}i32.v{LANES}p0",
        fnty=ir.FunctionType(words, [tables.type, _WORD, flags, words]),
    )
    count = builder.module.declare_intrinsic(f"llvm.ctpop.v{LANES}i32", fnty=ir.FunctionType(words, [words]))
    stairs = builder.call(gather, [places, ir.Constant(_WORD, 4), _constant(1, _BIT), ir.Constant(words, ir.Undefined)])
    beyond = builder.sub(_constant(31, _WORD), builder.urem(cells, _constant(STAIR, _WORD)))
    climbed = builder.call(count, [builder.shl(stairs, beyond)])
    return builder.add(builder.ashr(stairs, _constant(16, _WORD)), climbed)


def _add(context: Any, builder: Any, sums: Any, at: Any, drawn: Any, flip: Any) -> Any:
    """Add (drawn ^ flip) - flip, which is drawn or -drawn, to sums[at : at + 16]."""
    flips = _spread(builder, flip, _WORD)
    signed = builder.sub(builder.xor(drawn, flips), flips)
    place = builder.bitcast(builder.gep(sums, [at]), ir.VectorType(_WORD, LANES).as_pointer())
    builder.store(builder.add(builder.load(place, align=4), signed), place, align=4)
    return context.get_dummy_value()
