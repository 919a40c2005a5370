"""Matrix products in 8-bit floating point, by torchao or, with delayed scaling, by Transformer Engine."""

import contextlib

from torch import nn


def convert(model: nn.Module, recipe: str) -> None:
    """The linear layers of `model`, all but the last, which is sensitive: scaled by tensor, by row, or by what was the
    largest of late (delayed).

    Scaled by tensor, FSDP gathers the weights as 8 bits too.
    """
    if recipe == "delayed":
        convert_to_transformer_engine(model)
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if recipe == "tensorwise":
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    else:
        config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda module, name: name != "head")


def convert_to_transformer_engine(model: nn.Module) -> None:
    import transformer_engine.pytorch as te

    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    for name, layer in linear.items():
        if name != "head":
            own = te.Linear(layer.in_features, layer.out_features, bias=False, device=layer.weight.device)
            model.set_submodule(name, own)


def products(recipe: str | None) -> contextlib.AbstractContextManager[None]:
    """What a forward pass runs in."""
    if recipe != "delayed":
        return contextlib.nullcontext()
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling, Format

    # Composer's amp_fp8 (get_precision_context in composer/core/precision.py)
    recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16, amax_compute_algo="max")
    return te.fp8_autocast(enabled=True, fp8_recipe=recipe)


def scale_weights(model: nn.Module) -> None:
    """After an optimizer step: the scales of all weights at once, by one all-reduce."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(model)
