"""Matrix products in 8-bit floating point, by torchao."""

from torch import nn


def convert(model: nn.Module, recipe: str) -> None:
    """The linear layers of `model`, all but the last, which is sensitive: scaled by tensor or by row.

    Scaled by tensor, FSDP gathers the weights as 8 bits too.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if recipe == "tensorwise":
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    else:
        config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda module, name: name != "head")


def scale_weights(model: nn.Module) -> None:
    """After an optimizer step: the scales of all weights at once, by one all-reduce."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(model)
