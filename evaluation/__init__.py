"""What eval_length.py needs beside the story that it tells, and two commands of their own: evaluation.answers (exact
answers) and evaluation.context (is the far text used?)."""
