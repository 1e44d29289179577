#!/usr/bin/env bash
# Prints the commands of a piece of the study, one run per line:  bash benchmark/study.sh PIECE SEED...
# To run them on two cores:  bash benchmark/study.sh baseline 1337 1 2 3 4 | xargs -P2 -d'\n' -n1 bash -c
# Finished runs are skipped and stopped ones resume, so the same line continues the study.
set -eu
piece=$1; shift

classics="rope alibi t5 none sinusoidal learnable transformer_xl rope_nope"
wide="rope alibi t5 fox5 rope_nope dape"
most="$classics fox5 scale_invariant dape"  # in other settings
recipes="smollm3 command_a olmo3 gemma3 gemma4 gpt_oss gpt_oss_without_sinks granite_swa mimo_v2 glm4 inkling"
unlike="command_a gemma3 gpt_oss key_offset alibi_offset"  # the four that differ most (card 12), and another
tasked="none learnable alibi rope t5 fox5 rope_nope transformer_xl sinusoidal dape rope_sampled sinusoidal_sampled"
normed="rope none gemma3 olmo3 rope_nope fox5 alibi"  # card 16
newer="kerple scale_invariant fox5 ssmax fox pope fire cope path dape"

options() {  # what distinguishes a line from the baseline
  case $1 in
    rope_128) echo "config/rope.py" ;;
    rope_window64) echo "config/rope.py --window=64" ;;
    rope_base500k) echo "config/rope.py --rope_theta=500000" ;;
    rope_base*) echo "config/rope.py --rope_theta=${1#rope_base}" ;;
    *_sampled) echo "config/${1%_sampled}.py --max_position=512" ;;
    *_half) echo "config/${1%_half}.py --max_position=512 --sampled_every=2" ;;  # sampled in every second step
    alibi_windows) echo "config/alibi.py --layers='window=1/8 *2 | window=0 *2'" ;;
    alibi_flat) echo "config/alibi.py --pos_options=flat_from=2,flat_to=4" ;;
    alibi_preceded) echo "config/alibi.py --window=512 --unscored=512" ;;  # text before every scored token
    alibi_gentle) echo "config/alibi.py --pos_options=factor=1/16" ;;
    rope_yarn) echo "config/rope.py --rope_scaling=yarn --rope_factor=8 --rope_block_size=128" ;;
    # the positions of well-known models in four layers, with windows of a quarter
    smollm3) echo "config/rope.py --layers='*3 | pos_scheme=none'" ;;
    command_a) echo "config/rope.py --layers='window=1/4 *3 | pos_scheme=none'" ;;  # also k_exaone and trinity
    olmo3) echo "config/rope.py --layers='window=1/4 *3 | window=0'" ;;
    gemma3) echo "config/rope.py --layers='window=1/4 *3 | rope_theta=1e6'" ;;
    gemma4) echo "config/rope.py --layers='window=1/4 *3 | rope_theta=1e6 rope_fraction=1/4'" ;;
    gpt_oss) echo "config/rope.py --layers='window=1/4 sink | sink'" ;;
    gpt_oss_without_sinks) echo "config/rope.py --layers='window=1/4 | window=0'" ;;
    granite_swa) echo "config/rope.py --layers='sink | window=1/4 sink *3'" ;;
    mimo_v2) echo "config/rope.py --layers='rope_partial=1/3 rope_theta=5e6 | rope_partial=1/3 window=1/4 sink *3'" ;;
    glm4) echo "config/rope.py --rope_partial=1/2" ;;
    inkling) echo "--pos_scheme=inkling --layers='window=1/4 *3 | window=0'" ;;
    *) if [ -f "config/$1.py" ]; then echo "config/$1.py"; else echo "--pos_scheme=$1"; fi ;;  # with its tuned settings
  esac
}

run() {  # run NAME SEED FLAGS...; the settings of a line win over those of a file in $size
  local name=$1 seed=$2; shift 2
  echo "OMP_NUM_THREADS=1 python train.py ${size:+$size }$(options "$name") --seed=$seed $* --out_dir=out/$piece/$name-$seed"
}

rate() {  # rate NAME SEED FACTOR FLAGS...: both peak rates times a factor
  local name=$1 seed=$2 factor=$3 adamw=0.004; shift 3
  [ "$name" = learnable ] && adamw=0.008
  set -- "--learning_rate=$(awk "BEGIN {print $adamw * $factor}") --muon_lr=$(awk "BEGIN {print 0.04 * $factor}")" "$@"
  piece="$piece/x$factor" run "$name" "$seed" "$@"
}

further() {  # further NAME SEED FLAGS...: 200 more steps of the baseline's RoPE
  run "$@" --init_from="out/baseline/rope-$2" --optimizer=muon --max_iters=200 --learning_rate=5e-4 --muon_lr=5e-3
}

for seed in "$@"; do
  case $piece in
    baseline) for name in $classics $newer rope_window64 alibi_flat; do run "$name" "$seed"; done ;;
    rates) for name in $classics $newer; do for factor in 0.5 2; do rate "$name" "$seed" "$factor"; done; done ;;
    sizes) for size in learnable:pos_init=:0.005:0.08 transformer_xl:pos_init=:0.005:0.08 t5:pos_options=size=:16:256 \
        sinusoidal:sinusoidal_size=:0.05:0.2 scale_invariant:pos_options=tau=:5:20 fox5:pos_options=b=:2:10 \
        cope:pos_options=p_max=:32:128; do
        IFS=: read -r name flag small large <<<"$size"
        piece=sizes/small run "$name" "$seed" "--$flag$small"
        piece=sizes/large run "$name" "$seed" "--$flag$large"; done ;;
    recall) for name in $classics $newer; do run "$name" "$seed" config/recall.py; done ;;
    steps) for name in $most; do run "$name" "$seed" --max_iters=3400; done ;;
    models) for name in $recipes key_offset alibi_offset; do run "$name" "$seed"; done ;;
    models3400) for name in $unlike; do run "$name" "$seed" --max_iters=3400; done ;;
    models_recall) for name in $unlike; do run "$name" "$seed" config/recall.py; done ;;
    time) for name in alibi fox5; do run "$name" "$seed" --max_iters=1725; done ;;  # as long as DAPE's 850
    steps6900) for name in rope fox5 rope_nope; do run "$name" "$seed" --max_iters=6900; done ;;
    rates64) for factor in 0.5 1 2; do rate rope "$seed" "$factor" --n_embd=64; done ;;
    rates256) for factor in 0.25 0.5 1; do rate rope "$seed" "$factor" --n_embd=256; done ;;
    width64) for name in $wide; do run "$name" "$seed" --n_embd=64; done ;;
    width256) for name in $wide; do run "$name" "$seed" --n_embd=256 --learning_rate=0.002 --muon_lr=0.02; done ;;
    bases) for base in 20 81 1000 1e6; do run "rope_base$base" "$seed"; done ;;
    tasks) for task in copy sort majority parity addition lookup reverse; do
        for name in $tasked; do
          size=config/task.py piece=tasks/$task run "$name" "$seed" "--dataset=${task}_char"; done; done ;;
    qknorm) for name in $normed; do run "$name" "$seed" --qk_norm; done ;;
    qknorm3400) for name in rope none; do run "$name" "$seed" --qk_norm --max_iters=3400; done ;;
    sampled) for name in rope rope_half rope_sampled alibi alibi_half alibi_sampled; do
        piece=sampled/text run "$name" "$seed"
        for task in copy sort; do
          size=config/task.py piece=sampled/$task run "$name" "$seed" "--dataset=${task}_char"; done; done ;;
    clock) size="--dataset=packages --batch_size=2 --gradient_accumulation_steps=8 --max_iters=1860"  # card 15
      size="$size --eval_interval=465 --dtype=bfloat16 --compile"  # keep the latest.pt of each evaluation of alibi
      for name in alibi rope fox5 alibi_windows alibi_flat alibi_gentle; do run "$name" "$seed" --block_size=512; done
      run alibi_preceded "$seed" --block_size=1024 ;;
    clock_characters) for n in 128 256 512; do  # keep the latest.pt of each evaluation
        piece="clock_characters/$n" run alibi "$seed" --block_size=$n --batch_size=$((32 * 128 / n)) \
          --max_iters=6900 --eval_interval=850; done ;;
    rounded) for name in alibi alibi_rounded; do
        run "$name" "$seed" --block_size=512 --batch_size=8; done | sed 's/train.py/-m benchmark.rounded train/' ;;
    # card 18, on texts that  python -m data.prepare copy --longest=10 --name=copy10_char  and so on makes; scored with
    # --lengths=$(seq -s, 10 1 40) and so on
    reach) for task in copy sort; do for name in none alibi fox5 rope_sampled; do
        size=config/task.py piece=tasks/$task run "$name" "$seed" "--dataset=${task}_char"
        [[ $seed == [34] ]] || for n in 10 40; do  # five seeds of 20, three of the others
          size=config/task.py piece=reach/$n/$task run "$name" "$seed" "--dataset=$task${n}_char"; done; done; done ;;
    adamw) for name in $most; do run "$name" "$seed" config/adamw.py; done ;;
    prose) for name in $most; do run "$name" "$seed" --dataset=kjv_char; done ;;
    bpe) for name in $most; do run "$name" "$seed" --dataset=sympy_bpe4096; done ;;
    t256) for name in $most; do run "$name" "$seed" --block_size=256 --batch_size=16; done ;;
    long) for name in rope alibi t5 rope_nope; do for n in 512 1024; do
        piece="long/$n" run "$name" "$seed" --block_size=$n --batch_size=$((32 * 128 / n)); done; done ;;
    further) for name in rope rope_base500k rope_yarn; do further "$name" "$seed" --block_size=1024 --batch_size=4; done
      further rope_128 "$seed" --block_size=128 --batch_size=32 ;;
    *) echo "unknown piece $piece" >&2; exit 2 ;;
  esac
done
