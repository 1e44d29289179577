"""ALiBi at the baseline size: python train.py config/alibi.py

Loss over all of the validation text 1.32 nats, in three minutes on two cores of an AMD EPYC (Python 3.11.7's library).
"""

pos_scheme = "alibi"
