"""Machine operations that LLVM does not find by itself in a loop, written in its own terms."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

LANES = 16
"""Samples made by one call."""

_BIT, _SHORT, _WORD, _ADDRESS = (ir.IntType(bits) for bits in (1, 16, 32, 64))


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Count the zero bits below the lowest set bit of a uint64; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


@intrinsic
def at_least(typing_context: Any, values: Any, at: Any, limit: Any) -> Any:
    """Return a word whose bit i tells whether values[at + i] >= limit, for 64 unsigned short integers."""

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
def add_nodes(typing_context: Any, acc: Any, cells: Any, nodes: Any, flip: Any, at: Any) -> Any:
    """Add nodes[cells[i]] to acc[i], or subtract it if flip = 2^32 - 1, for the 16 places from `at` on.

    A loop cannot be turned into this by the compiler, which must assume that acc overlaps the table.  `nodes` holds
    16-bit integers and has one more than there are cells: they are read four bytes at a time.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, index, table = _pointers(context, builder, signature, arguments, 3)
        drawn = _gathered(builder, table, _shorts(builder, index, arguments[4]))
        return _add(context, builder, sums, arguments[4], drawn, arguments[3])

    return types.void(acc, cells, nodes, types.uint32, types.intp), generate


@intrinsic
def add_hats(
    typing_context: Any, acc: Any, cells: Any, hats: Any, nodes: Any, log_width: Any, flip: Any, at: Any
) -> Any:
    """Do as `add_nodes` with w nodes[cells[i]] + L1 - L2: w = 2^k, L1 and L2 the two bytes of hats[i] mod w."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, index, pairs, table = _pointers(context, builder, signature, arguments, 4)
        k = _spread(builder, arguments[4], _WORD)
        node = builder.shl(_gathered(builder, table, _shorts(builder, index, arguments[6])), k)
        below = builder.sub(builder.shl(_constant(1, _WORD), k), _constant(1, _WORD))
        pair = _shorts(builder, pairs, arguments[6])
        plus = builder.and_(pair, below)
        minus = builder.and_(builder.lshr(pair, _constant(8, _WORD)), below)
        drawn = builder.sub(builder.add(node, plus), minus)
        return _add(context, builder, sums, arguments[6], drawn, arguments[5])

    return types.void(acc, cells, hats, nodes, types.uint32, types.uint32, types.intp), generate


@intrinsic
def rank(typing_context: Any, rows: Any, row: Any, key: Any) -> Any:
    """Count, in a row of 16 short integers, how many after the first two are below the key; 255 if one equals it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (table,) = _pointers(context, builder, signature, arguments, 1)
        offset = builder.mul(arguments[1], ir.Constant(_ADDRESS, LANES))
        place = builder.bitcast(builder.gep(table, [offset]), ir.VectorType(_SHORT, LANES).as_pointer())
        values, keys = builder.load(place, align=2), _spread(builder, arguments[2], _SHORT)
        counted = ir.Constant(_SHORT, 0xFFFC)
        below = builder.and_(builder.bitcast(builder.icmp_unsigned("<", values, keys), _SHORT), counted)
        equal = builder.and_(builder.bitcast(builder.icmp_unsigned("==", values, keys), _SHORT), counted)
        some = builder.icmp_unsigned("!=", equal, ir.Constant(_SHORT, 0))
        return builder.zext(builder.select(some, ir.Constant(_SHORT, 255), builder.ctpop(below)), _ADDRESS)

    return types.int64(rows, types.int64, types.uint16), generate


def _pointers(context: Any, builder: Any, signature: Any, arguments: Any, count: int) -> list[Any]:
    """Return where the data of the first arguments lie, which are arrays."""
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
    """Load 16 unsigned short integers, widened to words."""
    place = builder.bitcast(builder.gep(base, [at]), ir.VectorType(_SHORT, LANES).as_pointer())
    return builder.zext(builder.load(place, align=2), ir.VectorType(_WORD, LANES))


def _gathered(builder: Any, table: Any, index: Any) -> Any:
    """Load the short integers at 16 places of a table, sign-extended: words are gathered, their upper halves cut."""
    words, flags = ir.VectorType(_WORD, LANES), ir.VectorType(_BIT, LANES)
    pointers = ir.VectorType(_WORD.as_pointer(), LANES)
    start = _spread(builder, builder.ptrtoint(table, _ADDRESS), _ADDRESS)
    offsets = builder.shl(builder.zext(index, ir.VectorType(_ADDRESS, LANES)), _constant(1, _ADDRESS))
    gather = builder.module.declare_intrinsic(
        f"llvm.masked.gather.v{LANES}i32.v{LANES}p0",
        fnty=ir.FunctionType(words, [pointers, _WORD, flags, words]),
    )
    places = builder.inttoptr(builder.add(start, offsets), pointers)
    everywhere, alignment = _constant(1, _BIT), ir.Constant(_WORD, 2)
    loaded = builder.call(gather, [places, alignment, everywhere, ir.Constant(words, ir.Undefined)])
    return builder.ashr(builder.shl(loaded, _constant(16, _WORD)), _constant(16, _WORD))


def _add(context: Any, builder: Any, sums: Any, at: Any, drawn: Any, flip: Any) -> Any:
    """Add (drawn ^ flip) - flip, which is drawn or its negative."""
    flips = _spread(builder, flip, _WORD)
    signed = builder.sub(builder.xor(drawn, flips), flips)
    place = builder.bitcast(builder.gep(sums, [at]), ir.VectorType(_WORD, LANES).as_pointer())
    builder.store(builder.add(builder.load(place, align=4), signed), place, align=4)
    return context.get_dummy_value()
