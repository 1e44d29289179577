#!/usr/bin/env bash
# What to measure on a GPU:  OUT=results/gpu bash benchmark/gpu.sh right | fast | recipe | prepare | study SEED...
# Each part writes its logs, figures and pictures under $OUT. Finished runs are skipped and stopped ones resume.
# SIZE=tiny tries every command on a CPU. NANOGPT names a checkout of nanoGPT, for `fast` and `recipe`.
set -u
part=$1; shift
out=${OUT:-results/gpu}; mkdir -p "$out"; nanogpt=${NANOGPT:-}
export WANDB_MODE=${WANDB_MODE:-disabled}
small="" steps="" blocks=256 lengths=1024,4096,16384,65536 tokens=8192
if [ "${SIZE:-}" = tiny ]; then
  small="--n_layer=2 --n_head=2 --n_embd=16 --block_size=32 --batch_size=2" steps="--max_iters=3"
  blocks=4 lengths=64,128 tokens=300
fi

log() {  # log NAME COMMAND...: its output on the screen and in a file
  local name=$1; shift
  echo "== $name: $*"; "$@" 2>&1 | tee "$out/$name.log" | tail -n 40
}

train() {  # train NAME FLAGS...
  local name=$1; shift
  log "train-${name//\//-}" python train.py "$@" $small $steps --out_dir="$out/runs/$name"
}

case $part in
  right)  # the whole suite, then what only a GPU can show
    log versions python -c "import sys, torch; print(sys.version, torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU', hasattr(torch.optim, 'Muon'))"
    log gpu python -m pytest -m gpu -n 4 --durations=10
    log suite python -m pytest -n 12
    ;;
  fast)  # tokens per second, share of the measured peak, memory: at GPT-2's size and at nanoGPT's size for characters
    log bench-gpt2 python -m tools.bench config/gpt2.py --block_size=1024 --batch_size=12 --rounds=5 ${nanogpt:+--nanogpt=$nanogpt} $small
    log bench-char python -m tools.bench config/shakespeare_char.py --rounds=10 ${nanogpt:+--nanogpt=$nanogpt} $small
    log bench-attention python -m tools.bench config/gpt2.py --lengths="$lengths" --rounds=3 $small
    ;;
  recipe)  # nanoGPT's recipe for Tiny Shakespeare: the wall clock to its validation loss of 1.4697
    log prepare-shakespeare python -m data.prepare shakespeare_char --file="${SHAKESPEARE:-../shared/data/tinyshakespeare.txt}"
    train shakespeare config/shakespeare_char.py config/rope.py
    [ -n "$nanogpt" ] && (cp -r data/shakespeare_char/*.bin "$nanogpt/data/shakespeare_char/" && cd "$nanogpt" &&
      python train.py config/train_shakespeare_char.py --wandb_log=False) 2>&1 | tee "$out/nanogpt-shakespeare.log" | tail -n 20
    ;;
  prepare)  # the source code of the installed packages, in 8,192 tokens
    log prepare python -m data.prepare "$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')" \
      --glob='*.py' --tokenizer="bpe:$tokens" --name=packages
    ;;
  study)  # the question at 25 to 50 million parameters: 512 tokens of training, evaluated up to 16 times that
    size="--dataset=packages --n_layer=8 --n_head=8 --n_embd=512 --block_size=512 --batch_size=64"
    for seed in "$@"; do
      for name in rope alibi rope_nope t5 none transformer_xl fox5 scale_invariant; do
        scheme="--pos_scheme=$name"
        [ "$name" = rope_nope ] && scheme="config/rope_nope.py --window=256"
        [ "$name" = fox5 ] && scheme="--pos_scheme=fox --pos_options=b=5"
        train "$name-$seed" $scheme $size --max_iters="${STEPS:-3000}" --seed="$seed" --eval_interval=1000
      done
    done
    log length python eval_length.py "$out"/runs/*-[0-9]* --results_dir="$out" --keep="$out/kept" --blocks="$blocks"
    ;;
  *) echo "unknown part $part" >&2; exit 2 ;;
esac
