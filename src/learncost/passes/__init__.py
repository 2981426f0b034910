"""Rewrite tables by passes: lowering, recomputation, fusion, quantization, LoRA, and the plans of a step (plan.py)."""
