#!/usr/bin/env bash
# What to measure on a GPU that can be had for half an hour:  OUT=FOLDER bash benchmark/gpu.sh fast|large
#   fast   Is it right, and is it fast? (400 s)
#   large  Is it true at 55M parameters, and with QK-norm? (560 s; card H in replications.md)
# Each part has a limit, and all of them end DEADLINE seconds after the start. What is finished is packed into
# $OUT/gpu.tar.gz after each part; the same command on the same machine does the rest.
# WORK: the folder for the work, best in memory. NANOGPT: a checkout of nanoGPT with its data for Tiny Shakespeare.
# NAMES: what `large` trains. SIZE=tiny tries everything on a CPU. Nothing is downloaded: data/packages and
# data/shakespeare_char must be prepared.
set -u
mkdir -p "${OUT:?names the folder for gpu.tar.gz}"
work=${WORK:-results/gpu} nanogpt=${NANOGPT:+$(realpath "$NANOGPT")}
export WANDB_MODE=disabled OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4 PYTHONUNBUFFERED=1
PATH=$(python3 -c 'import sys; print(sys.prefix)')/bin:$PATH  # where python is python3
mkdir -p "$work"
echo 'layers = "window=1/2 *3 | pos_scheme=none"' >"$work/half.py"

steps=800 small="" first="" tests="-n 8" bench="--block_size=1024 --batch_size=16 --rounds=20" blocks="--blocks=256 --block_tokens=32"
ours="--max_iters=700 --warmup_iters=30 --min_lr=0 --decay=linear" theirs=""
model="--n_layer=16 --n_head=8 --n_embd=512 --block_size=512 --batch_size=64" window=512
far=1024,2048,4096,8192,16384 lengths=128,512,1024,2048,8192
if [ "${SIZE:-}" = tiny ]; then
  steps=6 small="--n_layer=4 --n_head=2 --n_embd=16 --batch_size=2" first="--max_iters=4 --out_dir=out/gpu" tests="-n 1"
  bench="--block_size=32 --rounds=1" blocks="--blocks=20 --block_tokens=4" ours="--max_iters=6"
  model="--block_size=32 $small" window=32
  far=16,64 lengths=16,32,64
  theirs="--max_iters=2 --batch_size=2 --eval_iters=1 --device=cpu --dtype=float32 --compile=False"
fi

pack() {  # everything but the models
  tar czf "$OUT/$BASHPID" -C "$work" --exclude='*.pt' . 2>/dev/null
  mv "$OUT/$BASHPID" "$OUT/gpu.tar.gz"
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
# Is it right, and is it fast?

fast() {
  part versions 30 bash -c 'nvidia-smi; python -c "import sys, torch; print(sys.version, torch.__version__)"'

  # what is not timed, side by side. The benchmark only compiles here: the one that counts finds its kernels
  lines=40 part tests 150 bash -c "python -m pytest tests/test_gpu.py -m gpu $tests -vv --tb=short --durations=5 || ((\$? == 1))" &
  for schemes in learnable rope alibi,fox; do speed "compile-$schemes" 150 --schemes=$schemes --rounds=1 & done
  wait

  # alone: a step waited for and not, README's first command compiled and not, and a recipe beside nanoGPT's
  speed waited 100 --schemes=learnable,rope,alibi,fox ${nanogpt:+--nanogpt="$nanogpt"}
  speed flowing 100 --schemes=learnable,rope,alibi,fox ${nanogpt:+--nanogpt="$nanogpt"} --flowing=8
  speed rope-muon 60 --schemes=rope
  lines=24 speed lengths 60 --schemes=rope,alibi,fox,t5 --lengths=$far --rounds=5
  for compile in True False; do
    part "first-$compile" 90 bash -c "time python train.py config/rope.py --compile=$compile --overwrite $small $first"
  done
  part recipe 90 bash -c "time python train.py config/shakespeare_char.py config/rope.py --optimizer=muon \
    --learning_rate=0.004 $ours $small --compile=True --eval_interval=100 --overwrite --out_dir=$work/runs/recipe &&
    python train.py --eval_only --out_dir=$work/runs/recipe"
  [ -z "$nanogpt" ] || part recipe-nanogpt 150 bash -c "cd '$nanogpt' && time python train.py config/train_shakespeare_char.py $theirs"
}

speed() {  # speed PART SECONDS FLAGS...: training steps at GPT-2's size
  part "$1" "$2" python -m tools.bench config/gpt2.py $small $bench "${@:3}"
}

# ---------------------------------------------------------------------------------------------------------
# Is it true at 55M parameters, and with QK-norm?

large() {  # lanes side by side: each trains a model, then scores it
  for name in ${NAMES:-rope alibi rope-qk_norm alibi-qk_norm fox5 rope_nope}; do
    { train "$name" && score "$name"; } &
  done
  wait
}

train() {  # train NAME
  part "train-$1" 520 python train.py $(options "$1") --dataset=packages $model --max_iters=$steps \
    --eval_interval=$steps --log_interval=50 --out_dir="$work/runs/$1"  # without --overwrite: resumes a run that was cut off
}

options() {  # options NAME: what distinguishes a model
  case $1 in
    rope_nope) echo "config/rope.py $work/half.py" ;;
    fox5) echo "--pos_scheme=fox --pos_options=b=5" ;;
    *-qk_norm) echo "--pos_scheme=${1%-*} --qk_norm" ;;
    *) echo "--pos_scheme=$1" ;;
  esac
}

score() {  # score NAME: without a window, and with one of the training length
  local scored="$blocks --lengths=$lengths --results_dir=$work/results --keep=$work/kept"
  part "score-$1" 120 python eval_length.py "$work/runs/$1" $scored
  case $1 in rope | rope-* | alibi*) part "window-$1" 120 python eval_length.py "$work/runs/$1" $scored --window=$window ;; esac
}

case "$*" in
  fast) deadline=${DEADLINE:-400}; fast ;;
  large) deadline=${DEADLINE:-560}; large ;;
  *) echo "usage: OUT=FOLDER bash benchmark/gpu.sh fast|large" >&2; exit 2 ;;
esac
pack
