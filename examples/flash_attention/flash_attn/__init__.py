"""flash-attn 2's training interface over PyTorch's own FlashAttention-2 kernels, where flash-attn is not installed.

Transformer Engine attends with flash-attn before Hopper, and wherever a script asks for it; its package is built from
source for hours, and PyTorch has had the same kernels since 2.2. What PyTorch's lack (ALiBi, a softcap, a KV cache)
raises NotImplementedError.
"""

from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__version__ = "2.7.4"
__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
