"""Position schemes, one file each. The file's name is the scheme's: --pos_scheme=t5 reads schemes/t5.py."""
