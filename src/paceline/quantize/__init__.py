"""Checkpoints in fewer bits, made from a Hugging Face directory: shard by shard, in bounded memory, resumable."""
