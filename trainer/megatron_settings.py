"""How Megatron-core shares a model out. Importing this loads neither torch nor Megatron."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gateway.config import Positive, Section


class MegatronSettings(Section):
    """Sizes of the groups; what is left of the processes is data parallel."""

    tensor_parallel: Positive = Field(1, description="processes that share every matrix")
    pipeline_parallel: Positive = Field(1, description="stages that the layers are cut into")
    sequence_parallel: bool = Field(
        False, description="norms and residuals are shared out too; needs tensor_parallel above 1"
    )
    distributed_optimizer: bool = Field(
        True, description="masters and moments are shared out over data parallel processes"
    )
    layers: Literal["auto", "local", "transformer_engine"] = Field(
        "auto", description="auto: Transformer Engine on a GPU where it is installed, else local"
    )
    recompute: bool = Field(
        False, description="keep the input of each layer only, and compute the rest again"
    )
    portable: bool = Field(
        False,
        description="write moments as the torch back end reads them too; one process holds all",
    )

    @model_validator(mode="after")
    def _consistent(self) -> MegatronSettings:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError("sequence_parallel needs tensor_parallel above 1")
        return self
