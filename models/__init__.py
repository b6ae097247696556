"""Models: the decoder, its weights in Hugging Face layout, tokenizers, and chat formats."""
