"""Whole corpora: cut into shards, translated by one function, each written whole or not at all, so that any run can be resumed.

`plan.py` cuts inputs, `shard.py` translates a shard, `local.py` runs shards in processes, `manifest.py` knows what is done. An
executor decides where shards run and knows nothing else.
"""
