"""Models on disk: fairseq's checkpoints, Hugging Face's folders and our own."""
