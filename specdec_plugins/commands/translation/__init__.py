"""The parts of ``specdec-translate``: reading buffers of lines, translating them, writing the results."""
