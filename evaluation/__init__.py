"""The length evaluation: what is scored, the losses of it, their statistics, tables and pictures.

The words: a *block* is a part of the text whose tokens are scored, after a *window* of context. A *protocol* lays
both out. A *job* is one pass over all blocks, such as one context length, and yields *arrays* of losses by block. A
*line* is one entry of the comparison, a scheme with all its seeds. Its *values* are the numbers that are
shown: the loss, Δ, …
"""
