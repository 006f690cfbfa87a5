"""Training outside fairseq's plugin folders: initial checkpoints, the Muon optimiser, presets."""
