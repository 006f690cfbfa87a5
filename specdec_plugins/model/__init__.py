"""What a model is: its parts, and the names and shapes of its tensors. Knows no file format and no decoding."""
