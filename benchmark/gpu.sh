#!/usr/bin/env bash
# What to measure on a GPU that can be had for a quarter of an hour:  OUT=FOLDER bash benchmark/gpu.sh lease 1|2
#   lease 1  Is it right, is it fast? (240 s)    lease 2  Card G of benchmark/replications.md (500 s)
# Each part has a limit, and all of them end DEADLINE seconds after the start. What is finished is packed into
# $OUT/lease.tar.gz after each part, and the same command does the rest. On another machine, a copy of that archive in
# results/ says what is finished; models that are not scored yet are trained again.
# WORK: the folder for the work, best in memory. NANOGPT: a checkout of nanoGPT with its data for Tiny Shakespeare.
# NAMES, SEEDS: what lease 2 trains. SIZE=tiny tries everything on a CPU. Nothing is downloaded: data/packages and
# data/shakespeare_char must be prepared and, if tqdm or sympy 1.14.0 may be missing, results/wheels hold their wheels.
set -u
mkdir -p "${OUT:?names the folder for lease.tar.gz}"
work=${WORK:-results/gpu} nanogpt=${NANOGPT:+$(realpath "$NANOGPT")}
export WANDB_MODE=disabled OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4 PYTHONUNBUFFERED=1 \
  PYTHONPATH=$work/wheels
PATH=$(python3 -c 'import sys; print(sys.prefix)')/bin:$PATH  # where python is python3
if [ ! -d "$work" ]; then
  mkdir -p "$work"
  [ -f results/lease.tar.gz ] && tar xzf results/lease.tar.gz -C "$work" --exclude='./train-*' \
    --exclude='./compile-*' --exclude=./runs --exclude=./kept
  python -c 'import tqdm, sympy; assert sympy.__version__ == "1.14.0"' 2>/dev/null ||
    python -m pip install -q --no-index --no-deps --no-compile --target="$work/wheels" results/wheels/*.whl
fi

steps=1860 small="" first="" tests="-n 8" bench="--block_size=1024 --batch_size=16 --rounds=20" scored="--blocks=256"
echo 'layers = "window=1/2 *3 | pos_scheme=none"' >"$work/half.py"
lengths="1024,4096,16384" ours="--max_iters=2000" theirs=""
if [ "${SIZE:-}" = tiny ]; then
  steps=6 small="--n_layer=4 --n_head=2 --n_embd=16 --batch_size=2" first="--max_iters=4 --out_dir=out/rope"
  tests="-n 1" bench="--block_size=32 --rounds=1" scored="--blocks=20"
  lengths="64,128" ours="--max_iters=6" theirs="--max_iters=2 --batch_size=2 --eval_iters=1 --device=cpu --dtype=float32 --compile=False"
fi

pack() {  # everything but the models
  tar czf "$OUT/$BASHPID" -C "$work" --exclude='*.pt' --exclude=./wheels . 2>/dev/null
  mv "$OUT/$BASHPID" "$OUT/lease.tar.gz"
}

part() {  # part NAME SECONDS COMMAND...: runs the command unless an earlier call finished it; false if it did not finish
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  [ -e "$work/$name.done" ] && return
  ((limit < deadline - SECONDS)) || limit=$((deadline - SECONDS))
  ((limit > 0)) || { echo "== $name: no time left"; return 1; }
  timeout -k 10 "$limit" "$@" >>"$work/$name.log" 2>&1
  status=$?
  [ $status = 0 ] && touch "$work/$name.done"
  echo "== $name: status $status after $((SECONDS - start)) of $limit s: $*"
  tail -n "${lines:-12}" "$work/$name.log"
  pack
  return $status
}

# ---------------------------------------------------------------------------------------------------------
# Lease 1

right_and_fast() {
  part versions 30 bash -c 'nvidia-smi; python -c "import sys, torch, numpy; print(sys.version, torch.__version__, numpy.__version__)"'

  # all that is not timed, side by side. The benchmarks only compile here: the one that counts finds their kernels
  part first 150 bash -c "set -e; time python train.py config/rope.py $small $first
    time python sample.py out/rope --start='def '; time python eval_length.py out/rope --results_dir=$work/results" &
  lines=40 part tests 150 bash -c "python -m pytest tests/test_gpu.py -m gpu $tests -vv --tb=short --durations=5 || ((\$? == 1))" &
  rates &
  if [ ! -e "$work/speed.done" ]; then
    speed compile-1 150 --schemes=learnable ${nanogpt:+--nanogpt="$nanogpt"} --rounds=1 &
    speed compile-2 150 --schemes=rope,alibi --rounds=1 &
    speed compile-3 150 --schemes=fox --rounds=1 &
  fi
  variants compile-4 150 --rounds=1 &
  wait

  speed speed 150 --schemes=learnable,rope,alibi,fox ${nanogpt:+--nanogpt="$nanogpt"}
  variants variants 100
  part lengths 60 python -m tools.bench config/gpt2.py $small --lengths=$lengths --schemes=rope,alibi,fox,t5 --rounds=3
  recipe
  speed speed-t5 200 --schemes=rope,t5
}

speed() {  # speed PART SECONDS FLAGS...: training steps at GPT-2's size
  part "$1" "$2" python -m tools.bench config/gpt2.py $small $bench "${@:3}"
}

variants() {  # variants PART SECONDS FLAGS...: with all logits in memory, and without complex numbers, is it faster?
  part "$1" "$2" python -c '
import sys, torch, model
from tools import bench
class RealRoPE(model.RoPE, name="rope_real"):
    def rotate(self, q, k, x, prepared, layer, past):
        cos, sin = torch.view_as_real(prepared).unbind(-1)
        def turn(x):
            a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)
        return turn(q), turn(k)
model.MAX_LOGITS = 2**31
bench.main(sys.argv[1:])' config/gpt2.py $small $bench --schemes=learnable,rope_real "${@:3}"
}

recipe() {  # nanoGPT's recipe for Tiny Shakespeare: the time to its validation loss of 1.4697
  part recipe 100 python train.py config/shakespeare_char.py config/rope.py --optimizer=muon --learning_rate=0.004 \
    --eval_interval=100 $ours $small --out_dir="$work/runs/recipe"
  [ -n "$nanogpt" ] && part recipe-nanogpt 200 env -C "$nanogpt" python train.py config/train_shakespeare_char.py $theirs
}

# ---------------------------------------------------------------------------------------------------------
# Lease 2

larger() {  # the rows side by side, each one seed after another
  rates
  factor=$(best_rate)
  echo "== the learning rates are the defaults times ${factor:?no rate was measured}"
  for name in ${NAMES:-rope alibi fox5 rope_nope}; do row "$name" & done
  wait
}

train() {  # train PART NAME STEPS FACTOR FLAGS...: a model of card G; the factor is that of both learning rates
  local part=$1 name=$2 steps=$3 factor=$4
  shift 4
  part "$part" "${most:-300}" python train.py $(options "$name") --dataset=packages --n_layer=8 --n_head=8 --n_embd=384 \
    --block_size=512 --batch_size=64 --max_iters="$steps" --eval_interval="$steps" --log_interval=50 \
    --learning_rate="$(awk "BEGIN {print 0.004 * $factor}")" --muon_lr="$(awk "BEGIN {print 0.04 * $factor}")" \
    "$@" $small --out_dir="$work/runs/${part#train-}"
}

options() {  # options NAME: what distinguishes a row
  case $1 in
    rope_nope) echo "config/rope.py $work/half.py" ;;
    fox5) echo "--pos_scheme=fox --pos_options=b=5" ;;
    *) echo "--pos_scheme=$1" ;;
  esac
}

rates() {  # three learning rates of RoPE, for a third of the steps
  for factor in 0.25 0.5 1; do most=150 train "rate-$factor" rope $((steps / 3)) $factor & done
  wait
}

best_rate() {  # the factor with the lowest loss
  for factor in 0.25 0.5 1; do
    echo "$(sed -n 's/.*validation loss //p' "$work/rate-$factor.log") $factor"
  done | grep '^[0-9]' | sort -g | head -n 1 | cut -d' ' -f2
}

row() {  # row NAME: a model for each seed, as long as the next one fits. While it trains, those before it are scored
  local name=$1 models=() start took=0
  for seed in ${SEEDS:-1337 1 2 3}; do
    if [ ! -e "$work/score-$name-$seed.done" ]; then
      ((took < deadline - SECONDS)) || { echo "== $name: no time for seed $seed"; break; }
      start=$SECONDS
      train "train-$name-$seed" "$name" "$steps" "$factor" --seed="$seed" || break
      took=$((SECONDS - start))
    fi
    models=("$work/runs/$name"-*/best.pt)  # none if they were scored on another machine
    [ -e "${models[0]}" ] && score "$name" "$seed" "${models[@]%/best.pt}" &
  done
  wait
}

score() {  # score NAME SEED MODELS...
  local name=$1 seed=$2
  local scored="$scored --block_tokens=32 --lengths=128,512,1024,2048,8192 --results_dir=$work/results --keep=$work/kept"
  shift 2
  part "score-$name-$seed" 120 python eval_length.py "$@" $scored
  case $name in
    rope | alibi) part "score-$name-window-$seed" 120 python eval_length.py "$@" $scored --window=512 ;;&
    rope) part "score-rope-yarn-$seed" 120 python eval_length.py "$@" $scored --rope_scaling=yarn ;;
    alibi) part "score-alibi-float32-$seed" 120 python eval_length.py "$@" $scored --keep= --dtype=float32 ;;
  esac
}

case "$*" in
  "lease 1") deadline=${DEADLINE:-240}; right_and_fast ;;
  "lease 2") deadline=${DEADLINE:-500}; larger ;;
  *) echo "usage: OUT=FOLDER bash benchmark/gpu.sh lease 1|2" >&2; exit 2 ;;
esac
pack
