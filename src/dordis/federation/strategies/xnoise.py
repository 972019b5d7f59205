"""XNoise, the paper's and the default: add more than is needed, and remove what is too much."""

from typing import ClassVar, Literal

from dordis.federation.strategies.strategy import Strategy
from dordis.privacy.xnoise import Scheme


class XNoise(Strategy, frozen=True, tag="xnoise"):
    """Add more than is needed, remove what is too much: the target holds, whoever drops."""

    scheme: Literal["single", "exact"] = "single"

    words: ClassVar[str] = (
        "every client adds more noise than is needed, and once it is known who dropped out, the excess is removed "
        "(scheme '{scheme}'). The target holds whoever drops, up to {T} clients of a round lost before their "
        "upload; a round that loses more ends without an output."
    )

    @property
    def division(self) -> Scheme:
        """Return one of the two ways in which components can be removed."""
        return Scheme(self.scheme)
