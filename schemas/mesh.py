"""The mesh of devices that learning is spread over."""

from schemas.base import Positive, Section


class Mesh(Section):
    """How the learner and the warm-ups are spread over the devices of their machine: the sizes of a mesh, whose product
    is the number of devices that are used. It changes results by rounding only, and a checkpoint of one mesh goes on
    with another."""

    data: Positive = 1
    """Parts that the rows of a forward pass are dealt to, each with whole parameters."""
    fsdp: Positive = 1
    """Parts that rows are dealt to, and that the hidden size of parameters and of the optimizer's state is cut into."""
    tensor: Positive = 1
    """Parts that attention heads, the insides of MLPs and, where it divides, the vocabulary are cut into."""

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        return self.data * self.fsdp * self.tensor

    @property
    def rows(self) -> int:
        """Parts that rows are dealt to."""
        return self.data * self.fsdp
