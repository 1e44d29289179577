"""A task with exact answers (data/tasks.py), for --protocol=task: python train.py config/task.py config/alibi.py"""

dataset = "copy_char"
n_embd = 64
batch_size = 64
learning_rate = 2e-3
max_iters = 1000
