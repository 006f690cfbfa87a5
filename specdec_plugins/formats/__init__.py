"""Models on disk: fairseq's checkpoints and our folders."""
