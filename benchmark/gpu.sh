#!/usr/bin/env bash
# What to measure on a GPU:  OUT=results/gpu bash benchmark/gpu.sh right | fast | recipe | char SEED... | prepare |
# rates SEED | study SEED... | recall SEED...
# Each part writes its logs, figures and pictures under $OUT. Finished runs are skipped and stopped ones resume.
# SIZE=tiny tries every command on a CPU. NANOGPT names a checkout of nanoGPT, for `fast` and `recipe`. RATES: what
# `rates` found, such as "--learning_rate=0.002 --muon_lr=0.02". STEPS: of the study.
set -u
part=$1; shift
out=${OUT:-results/gpu}; mkdir -p "$out"; nanogpt=${NANOGPT:-}
export WANDB_MODE=${WANDB_MODE:-disabled}
small="" steps="" blocks=256 lengths=1024,4096,16384,65536 longer=64,256,1024,4096,16384 tokens=8192
if [ "${SIZE:-}" = tiny ]; then
  small="--n_layer=2 --n_head=2 --n_embd=16 --block_size=32 --batch_size=2" steps="--max_iters=3"
  blocks=4 lengths=64,128 longer=8,32,128 tokens=300
fi

log() {  # log NAME COMMAND...: its output on the screen and in a file
  local name=$1; shift
  echo "== $name: $*"; "$@" 2>&1 | tee "$out/$name.log" | tail -n 40
}

train() {  # train NAME FLAGS...
  local name=$1; shift
  log "train-${name//\//-}" python train.py "$@" $small $steps --out_dir="$out/runs/$name"
}

flags() {  # flags NAME: what distinguishes a line from the others
  case $1 in
    rope_nope) echo "config/rope_nope.py --window=256" ;;
    rope_window) echo "--pos_scheme=rope --window=256" ;;
    fox5) echo "--pos_scheme=fox --pos_options=b=5" ;;
    *) echo "--pos_scheme=$1" ;;
  esac
}

evaluate() {  # evaluate NAME RUNS FLAGS...: of all runs whose folder starts so
  local name=$1 runs=$2; shift 2
  log "$name" python eval_length.py "$out/runs/$runs"-* --results_dir="$out" --blocks="$blocks" "$@"
}

names="rope rope_window rope_nope alibi t5 none transformer_xl fox5 kerple"
size="--dataset=packages --n_layer=8 --n_head=8 --n_embd=512 --block_size=512 --batch_size=64 --eval_interval=1000"

case $part in
  right)  # the whole suite, then what only a GPU can show
    log versions python -c "import sys, torch; print(sys.version, torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU', hasattr(torch.optim, 'Muon'))"
    [ -d wheels ] && log wheels pip install --no-index --find-links=wheels pytest-xdist hypothesis filelock tqdm rustbpe  # no network
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
    train shakespeare-muon config/shakespeare_char.py config/rope.py --optimizer=muon --max_iters=2000 --eval_interval=100
    [ -n "$nanogpt" ] && (cp -r data/shakespeare_char/*.bin "$nanogpt/data/shakespeare_char/" && cd "$nanogpt" &&
      python train.py config/train_shakespeare_char.py --wandb_log=False) 2>&1 | tee "$out/nanogpt-shakespeare.log" | tail -n 20
    ;;
  char)  # the comparison at that size: 256 tokens of training, evaluated up to 64 times that
    for seed in "$@"; do
      for name in none sinusoidal learnable rope alibi t5; do
        train "char-$name-$seed" config/shakespeare_char.py $(flags $name) --dataset=sympy_char --max_iters=2000 --seed="$seed"
      done
    done
    evaluate char char --lengths="$longer"
    ;;
  prepare)  # the source code of the installed packages, in 8,192 tokens
    log prepare python -m data.prepare "$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')" \
      --glob='*.py' --tokenizer="bpe:$tokens" --name=packages
    ;;
  rates)  # three rates of three schemes, for a third of the steps; adamw-*: without Muon
    for name in rope alibi t5; do
      for factor in 0.5 1 2; do
        train "rates-$name-x$factor" $(flags $name) $size --max_iters="$((${STEPS:-3000} / 3))" --seed="$1" \
          --learning_rate="$(awk "BEGIN {print 0.004 * $factor}")" --muon_lr="$(awk "BEGIN {print 0.04 * $factor}")"
      done
      train "rates-$name-adamw" $(flags $name) config/adamw.py $size --max_iters="$((${STEPS:-3000} / 3))" --seed="$1"
    done
    ;;
  study)  # the question at 25 to 50 million parameters: 512 tokens of training, evaluated up to 16 times that
    for seed in "$@"; do
      for name in $names; do
        train "study-$name-$seed" $(flags $name) $size --max_iters="${STEPS:-3000}" ${RATES:-} --seed="$seed"
      done
    done
    evaluate length study --keep="$out/kept"
    ;;
  recall)  # can they look up what is far?
    log prepare-recall python -m data.prepare recall
    for seed in "$@"; do
      for name in $names; do
        train "recall-$name-$seed" $(flags $name) config/recall.py --seed="$seed"
      done
    done
    evaluate recall recall --protocol=recall
    ;;
  *) echo "unknown part $part" >&2; exit 2 ;;
esac
