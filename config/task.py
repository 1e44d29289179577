"""A task with exact answers (data/tasks.py), for evaluation.answers: python train.py config/task.py config/alibi.py

For another task: --dataset=sort_char --out_dir=out/sort-alibi. The loss stays far from 0 because nobody can predict a
question, or an answer whose question begins before the window.
"""

dataset = "copy_char"
n_embd = 64
batch_size = 16
max_iters = 3000
