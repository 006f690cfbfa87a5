#!/usr/bin/env bash
# Train a verifier and its drafter, or a drafter for a model folder: ./train.sh --help.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<'TEXT'
usage: ./train.sh PRESET [STAGE ...] [--local DIR] [--output DIR] [--device cpu|cuda] [--precision P]
                  [--recipe R] [--beam N] [--mono FILE] [--updates N] [--seed N] [-- OPTION ...]
       ./train.sh --verifier FOLDER --sources TEXT [STAGE ...] [the same options but --local, --beam, --mono]
                  train a drafter for a model folder from source text: distill, drafter, average, score, pack

presets (specdec_plugins/training/presets):
  toy                                      made-up languages; minutes on a CPU
  multi30k, multi30k.base                  image captions; small models and transformer-base
  wmt14.en-de, wmt14.de-en                 news, for GPUs
  wmt16.en-ro, wmt16.ro-en                 news, for GPUs
  correction                               captions with inserted errors to correct
  long                                     documents of captions
  cnndm, bart_base                         news summaries (docs/summarise.md)
  docs.en-fr                               software documentation, from --local
  small.SRC-TGT                            your own corpus, models as in multi30k; --local DIR must contain
                                           train, valid and test .SRC and .TGT (.gz allowed)

stages, in this order (default: all); each skips what is done and resumes what was interrupted:
  data      fetch and prepare the corpus
  verifier  train the autoregressive model
  distill   translate the training text with it, as the drafter's training set
  init      make the drafter's initial checkpoint from the verifier (--recipe published only)
  drafter   train the drafter
  average   average its last checkpoints
  score     BLEU of the verifier, accept_len of the drafter
  pack      make a model folder; by default only with --verifier

options:
  --verifier DIR   a model folder, such as specdec-import makes, whose drafter is to be trained
  --sources FILE   source text, one sentence per line, .gz allowed; the verifier translates it
  --local DIR      use files already downloaded
  --output DIR     output folder (default: runs/PRESET, or runs/ and the model folder's name)
  --device D       cpu or cuda (default: cuda if available)
  --precision P    float32, bf16 (bfloat16 matrix products) or fp16 (cuda only); default: the fastest on the device
  --recipe R       the drafter and its training: glide (default), published (Xia et al. 2023), or another on the frozen verifier:
                   block_causal, small, medusa, hydra, block_state, eagle (docs/drafters.md)
  --beam N         beam size of distill (default: 1, because drafts are verified against greedy output)
  --mono FILE      additional source text to distil (raw, one sentence per line, .gz allowed)
  --updates N      train both models for N updates instead of the preset's
  --seed N         random seed (default: 1)
  -- OPTION ...    options of fairseq-train for both models; they override the preset's (several machines: docs/reproduce.md).
                   --encoder-* and --decoder-* shape the verifier; only the recipe published has a shape of its own
TEXT
}

die() { echo "train.sh: $*" >&2; exit 1; }
say() { echo "== $*"; }

# ---- arguments
preset= stages=() folder= described= sources= local_dir= out= device= precision= recipe= beam=1 mono= updates= seed=1 fairseq_options=()
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage; exit 0 ;;
        --verifier|--sources|--local|--output|--device|--precision|--recipe|--beam|--mono|--updates|--seed)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
                --verifier) folder=$2 ;; --sources) sources=$2 ;;
                --local) local_dir=$2 ;; --output) out=$2 ;; --device) device=$2 ;; --precision) precision=$2 ;;
                --recipe) recipe=$2 ;; --beam) beam=$2 ;; --mono) mono=$2 ;; --updates) updates=$2 ;; --seed) seed=$2 ;;
            esac
            shift 2 ;;
        --) shift; fairseq_options=("$@"); break ;;
        -*) die "unknown option $1 (see --help)" ;;
        *) stages+=("$1"); shift ;;
    esac
done
if [ -n "$folder" ]; then
    preset=folder available=(distill drafter average score pack)
    [ ${#stages[@]} -gt 0 ] || stages=("${available[@]}")
    described=$folder/model.json
    [ -f "$described" ] || described=$folder/config.json  # from Hugging Face
    [ -f "$described" ] || die "--verifier $folder: not a model folder"
    [ -f "$sources" ] || die "--sources ${sources:-is missing}${sources:+: no such file}"
    [ -z "$local_dir$mono" ] && [ "$beam" = 1 ] || die "--local, --mono and --beam cannot be combined with --verifier"
    folder=$(realpath "$folder") described=$(realpath "$described") sources=$(realpath "$sources")
else
    available=(data verifier distill init drafter average score pack)
    [ ${#stages[@]} -gt 0 ] || { usage >&2; exit 2; }
    preset=${stages[0]} stages=("${stages[@]:1}")
    [ ${#stages[@]} -gt 0 ] || stages=(data verifier distill init drafter average score)
fi
for stage in "${stages[@]}"; do
    [[ " ${available[*]} " == *" $stage "* ]] ||
        die "no stage named '$stage'. Available: $(printf '%s, ' "${available[@]}" | sed 's/, $//')"
done
for option in beam updates seed; do
    [[ ${!option} =~ ^[0-9]*$ ]] || die "--$option ${!option}: not a number"
done
[[ -z $updates || $updates -gt 0 ]] || die "--updates $updates: not a positive number"
[ -z "$mono" ] || [ -f "$mono" ] || die "--mono $mono: no such file"
out=$(realpath -m "${out:-$root/runs/$(basename "${folder:-$preset}")}")

# ---- device and precision
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
"$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("fairseq"))' ||
    die "$python has no fairseq: run 'make install' first"
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore PYTHONUNBUFFERED=1

# ---- preset and recipe; an output folder has one recipe
recorded=$(cat "$out/recipe" 2>/dev/null || true)
[ -z "$recorded" ] || [ -z "$recipe" ] || [ "$recipe" = "$recorded" ] ||
    die "--recipe $recipe: $out has a drafter of the recipe $recorded; name another --output"
recipe=${recipe:-$recorded}
settings=$("$python" -m specdec_plugins.training.presets "$preset" ${recipe:+--recipe "$recipe"} ${updates:+--updates "$updates"} 2>&1) ||
    die "$settings"
eval "$settings"
[ -z "$folder" ] || [ -z "$initialised" ] || die "--recipe $recipe trains from a fairseq checkpoint, not from a model folder; specdec-draft trains it for one"
[ $corpus != folder ] || [ -n "$folder" ] || die "preset folder requires --verifier"
gpus=1
[ "$device" = cpu ] || gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
[ -n "$device" ] || { [ "$gpus" -gt 0 ] && device=cuda || device=cpu; }
case $device in
    cpu) gpus=1 workers=0 translators= device_options=(--cpu)
         # glibc returns large tensors to the kernel and faults them in again in every step. Keeping them, in huge pages, makes
         # a training step 1.6 times as fast; other C libraries ignore these variables. oneDNN caches 1,024 products of
         # different shapes, which fragment that memory. Not for translation: with its varied batch sizes, it took 19 GB
         # instead of 6.
         training_memory=(MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
                          GLIBC_TUNABLES=glibc.malloc.hugetlb=1 ONEDNN_PRIMITIVE_CACHE_CAPACITY=64)
         if [ -z "$precision" ]; then
             grep -qE 'avx512_bf16|amx_bf16' /proc/cpuinfo 2>/dev/null && precision=bf16 || precision=float32
         fi ;;
    cuda) [ "$gpus" -gt 0 ] || die "--device cuda: torch sees no GPU"
          workers=4 translators=$gpus device_options=() training_memory=() precision=${precision:-fp16} ;;
    *) die "no device named '$device'. Available: cpu, cuda" ;;
esac
case $device-$precision in
    *-float32) ;;
    *-bf16) export SPECDEC_MATMUL=bf16 ;;
    cuda-fp16) device_options+=(--fp16) ;;
    *) die "no precision '$precision' on $device. Available: float32, bf16, and fp16 on cuda" ;;
esac

drafter_task=(--task translation)
[ -z "$initialised" ] || drafter_task=(--task translation_lev_modified --noise block_mask --block-size $block)
data=$out/data bin=$out/data/bin distilled=$out/distilled logs=$out/logs
plugin=(--user-dir "$root/specdec_plugins")
verifier=${folder:-$out/verifier.pt}
verifier_file=${described:-$verifier}  # whose date counts
mkdir -p "$logs"

# Run a command, log its output, show progress and, on failure, its last error.
logged() { # logged TOTAL COMMAND...: TOTAL is the number of updates, 0 if it makes none
    local total=$1 log=$logs/$stage.log begin; shift
    begin=$(($(wc -c 2>/dev/null <"$log" || echo 0) + 1))
    "$@" 2>&1 | tee -a "$log" | "$python" -m specdec_plugins.commands.watch "$stage" "$total" || die "$stage failed: $(last_error "$begin")"
}
last_error() { # last_error BEGIN: the last error in the stage's log from this byte on
    local line; line=$(tail -c "+$1" "$logs/$stage.log" | grep -E '^[A-Za-z_.]*(Error|Exception|Interrupt)|error:' | tail -n 1 | cut -c1-500) || true
    echo "${line:-it ended without an error message, perhaps killed; run the same command to resume} (log: $logs/$stage.log)"
}

up_to_date() { # up_to_date FILE SOURCE: whether FILE exists and is newer than its source; if so, report it
    [ "$1" -nt "$2" ] && echo "${1#"$out"/}: done"
}

train() { # train FOLDER DATA START UPDATES options...: fairseq-train, resumed from checkpoint_last.pt if it exists
    local folder=$1 binarised=$2 start=$3 updates=$4 made; shift 4; set -- "$@" "${fairseq_options[@]}"
    for made in "$binarised" "$start"; do  # fairseq would continue with the old model and ignore its new start
        [ ! -e "$folder/checkpoint_last.pt" ] || [ ! "$made" -nt "$folder/checkpoint_last.pt" ] ||
            die "$stage: $made is newer than the training in $folder; remove that folder or use another --output to retrain"
    done
    if up_to_date "$folder/done.$updates" "$binarised"; then return; fi  # fairseq would make one more update
    local processes=$gpus  # on all machines: torchrun's, or Slurm's with one task per machine
    [ $device = cpu ] || processes=${WORLD_SIZE:-$((gpus * ${SLURM_NNODES:-1}))}
    local update_freq=$((tokens / (device_tokens * processes)))
    # fairseq's default batch size multiple of 8 drops a smaller last batch (facebookresearch/fairseq#5036).
    # Checkpoints and validation count updates, as epochs take seconds or hours.
    logged "$updates" env "${training_memory[@]}" "$python" -m fairseq_cli.train "$binarised" -s $src -t $tgt \
        "${plugin[@]}" "${device_options[@]}" --save-dir "$folder" --seed "$seed" --max-update "$updates" \
        --max-tokens $device_tokens --update-freq $((update_freq > 0 ? update_freq : 1)) \
        --log-format json --log-interval 50 --num-workers $workers --required-batch-size-multiple 1 \
        --save-interval-updates $save_every --validate-interval-updates $save_every --keep-interval-updates $keep \
        --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000 \
        --optimizer adam "$@"
    touch "$folder/done.$updates"
}

average() { # average FOLDER OUTPUT: average the last checkpoints of a training
    [ "${RANK:-${SLURM_PROCID:-0}}" -eq 0 ] || return 0  # only the first of several processes
    if up_to_date "$2" "$1/checkpoint_last.pt"; then return; fi
    mapfile -t last < <(ls "$1"/checkpoint_*_*.pt 2>/dev/null | sort -V)
    # checkpoint_last.pt differs from the last interval's if training ended between intervals.
    if [ ${#last[@]} -eq 0 ] || ! cmp -s "${last[-1]}" "$1/checkpoint_last.pt"; then last+=("$1/checkpoint_last.pt"); fi
    mapfile -t last < <(printf '%s\n' "${last[@]}" | tail -n $keep)
    "$python" -m specdec_plugins.commands.average --inputs "${last[@]}" --output "$2"
}

need() { # need STAGE FILE...: fail if a file is missing, naming the stage that makes it
    local maker=$1; shift
    for file in "$@"; do [ -e "$file" ] || die "$stage needs $file: run stage '$maker' first"; done
}

translate() { # translate SOURCE OUTPUT BEAM DTYPE: translate subwords, or text with a model folder's verifier; resumable
    local shards=$2.shards model=(--verifier "$verifier" --data "$bin" -s $src -t $tgt --tokenized --too-long truncate)
    if up_to_date "$2" "$verifier_file"; then return; fi
    [ "$shards/manifest.json" -nt "$verifier_file" ] || rm -rf "$shards"
    [ -z "$folder" ] || model=(--model "$folder" --format json --too-long skip)
    # On a CPU, single-threaded processes translate faster than threads that share batches.
    [ -n "$translators" ] ||
        translators=$("$python" -c 'from specdec_plugins.cpus import usual_threads; print(min(8, usual_threads()))')
    local strategy=(ar --beam 1 --dtype "$4")
    [ "$3" -le 1 ] || strategy=(fairseq --beam "$3")
    "$python" -m specdec_plugins.commands.corpus "$1" "${model[@]}" --output "$shards" --strategy "${strategy[@]}" \
        "${decoding_options[@]}" --device "$device" --workers "$translators" --max-tokens $((2 * device_tokens)) \
        --shard-size 250000 --buffer-size 5000 || die "$stage: translation of $1 failed"
    find "$shards" -name 'part-*' -print0 | sort -z | xargs -0r cat >"$2.part"
    mv "$2.part" "$2"
    rm -rf "$shards"
}

# ---- stages
stage_data() {
    if [ $corpus != prepare ]; then
        sh "$root/data/$corpus.sh" --output "$data" ${local_dir:+--local "$local_dir"} "${prepare_options[@]}"
        return
    fi
    if [ -z "$local_dir" ] && [ -e "$bin/dict.$src.txt" ]; then echo "data: done"; return; fi
    [ -n "$local_dir" ] || die "$preset requires --local DIR, a folder with train, valid and test .$src and .$tgt"
    sh "$root/data/prepare.sh" --source-lang $src --target-lang $tgt --train "$local_dir/train" --valid "$local_dir/valid" \
        --test "$local_dir/test" "${prepare_options[@]}" --output "$data"
}

stage_verifier() {
    need data "$bin/dict.$src.txt"
    train "$out/verifier" "$bin" "${pretrained:+$data/$pretrained}" $verifier_updates --task translation --arch transformer \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --adam-betas '(0.9, 0.98)' \
        --weight-decay 0.0001 ${pretrained:+--finetune-from-model "$data/$pretrained"} "${verifier_options[@]}"
    average "$out/verifier" "$out/verifier.pt"
}

stage_distill() {
    mkdir -p "$distilled/text"
    if [ -n "$folder" ]; then
        [ "$distilled/text/train.json" -nt "$sources" ] || rm -f "$distilled/text/train.json"
        [ "$distilled/text/train.json.shards/manifest.json" -nt "$sources" ] || rm -rf "$distilled/text/train.json.shards"
        translate "$sources" "$distilled/text/train.json" 1 auto
        if up_to_date "$distilled/bin/dict.$tgt.txt" "$distilled/text/train.json"; then return; fi
        "$python" -m specdec_plugins.commands.token_ids --model "$folder" --sources "$sources" \
            --outputs "$distilled/text/train.json" --output "$distilled/bin" || die "distill: no training data"
        return
    fi
    need verifier "$verifier"
    local how=$distilled/made-with made length
    for split in train valid; do
        cp "$data/bpe/$split.$src" "$distilled/text/$split.$src"
    done
    if [ -n "$mono" ]; then
        length=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1])).get("options", {}).get("max_length", 175))' "$data/prepare.json")
        sh "$root/data/prepare.sh" --mono "$mono" --source-lang $src --target-lang $tgt --codes "$data/codes" \
            --tokenizer $tokenizer --max-length "$length" --output "$out/mono"
        cat "$out/mono/bpe/mono.$src" >>"$distilled/text/train.$src"
    fi
    made="$beam $(sha256sum <"$distilled/text/train.$src")"
    # Earlier versions recorded the path of --mono.
    if [ -e "$how" ] && [ "$(cat "$how")" != "$made" ] && [ "$(cat "$how")" != "$beam $mono" ]; then
        echo "the source text or the beam size changed: redoing the translations in $distilled/text"
        rm -rf "$distilled"/text/*."$tgt" "$distilled"/text/*."$tgt".shards
    fi
    echo "$made" >"$how"
    # The fastest data type will do: a drafter is insensitive to a few flipped near ties.
    for split in valid train; do
        translate "$distilled/text/$split.$src" "$distilled/text/$split.$tgt" "$beam" auto
    done
    sh "$root/data/prepare.sh" --bpe-applied --source-lang $src --target-lang $tgt --dict "$bin/dict.$src.txt" \
        --train "$distilled/text/train" --valid "$distilled/text/valid" --tokenizer $tokenizer --output "$distilled"
}

stage_init() {
    if [ -z "$initialised" ]; then echo "init: not needed by $recipe, which starts from the verifier"; return; fi
    need verifier "$out/verifier.pt"
    echo $recipe >"$out/recipe"
    if up_to_date "$out/init.pt" "$out/verifier.pt"; then return; fi
    "$python" "$root/encoder_initial.py" --verifier "$out/verifier.pt" --output "$out/init.pt" \
        --data "$bin" --seed "$seed" "${init_options[@]}"
}

without_shape() { # without_shape OPTION...: a drafter on the verifier takes its shape from it
    local word kept=yes
    for word in "$@"; do
        case $word in --encoder-*|--decoder-*) kept= ;; --*) kept=yes ;; esac
        [ -z "$kept" ] || printf '%s\n' "$word"
    done
}

stage_drafter() {
    need distill "$distilled/bin/train.$src-$tgt.$src.idx"; need verifier "$verifier_file"
    local start=$verifier_file
    local how=(--task translation --arch drafter --criterion drafter_loss --drafter $recipe --drafter-block-size $block
        --verifier "$verifier")
    if [ -n "$initialised" ]; then
        start=$out/init.pt
        need init "$start"
        how=("${drafter_task[@]}" --total-up $drafter_updates --finetune-from-model "$start")
    else
        local shapeless; mapfile -t shapeless < <(without_shape "${fairseq_options[@]}")
        local fairseq_options=("${shapeless[@]}")
    fi
    echo $recipe >"$out/recipe"
    train "$out/drafter" "$distilled/bin" "$start" $drafter_updates "${how[@]}" \
        --best-checkpoint-metric accept_len --maximize-best-checkpoint-metric "${drafter_options[@]}"
}

stage_average() {
    average "$out/drafter" "$out/drafter.pt"
}

score_verifier() {
    translate "$data/bpe/test.$src" "$out/test.bpe" 1 float32
    "$python" -c 'import sys; from specdec_plugins.text.bpe import remove_bpe; from specdec_plugins.text.tokenizers import load_tokenizer
tokenizer = load_tokenizer(*sys.argv[1:])
for line in sys.stdin: print(tokenizer.detokenize(remove_bpe(line)))' $tokenizer $tgt "$data/codes" <"$out/test.bpe" >"$out/test.$tgt"
    if [ -n "$rouge" ]; then
        echo "verifier, greedy, test:"
        "$python" -m specdec_plugins.commands.score --rouge --reference "$data/raw/test.$tgt" "$out/test.$tgt" || die "no ROUGE"
    else
        local bleu
        bleu=$("$python" -m sacrebleu "$data/raw/test.$tgt" -i "$out/test.$tgt" -m bleu -w 2 -f text) || die "no BLEU"
        echo "verifier, greedy, test: $bleu"
    fi
}

stage_score() {
    need verifier "$verifier_file"; need average "$out/drafter.pt"
    [ -n "$folder" ] || score_verifier
    echo "drafter, valid, against the verifier's greedy output:"
    logged 0 "$python" -m fairseq_cli.validate "$distilled/bin" "${plugin[@]}" "${device_options[@]}" --path "$out/drafter.pt" \
        "${drafter_task[@]}" -s $src -t $tgt --max-tokens $device_tokens \
        --required-batch-size-multiple 1 --num-workers 0 --log-format json
    sed -nE 's/.*"valid_block_acc": (\[[^]]*\]).*/accuracy by block position: \1/p' "$logs/score.log" | tail -n 1
    [ -z "$folder" ] || return 0
    echo "examples from the test set:"
    paste -d '\n' <(sed 's/^/  source:      /; 3q' "$data/raw/test.$src") <(sed 's/^/  translation: /; 3q' "$out/test.$tgt")
}

stage_pack() {
    need average "$out/drafter.pt"
    if up_to_date "$out/model/model.json" "$out/drafter.pt"; then return; fi
    rm -rf "$out/model"
    local parts=()
    if [ -z "$folder" ]; then
        parts=(--data "$bin" -s $src -t $tgt --draft-vocabulary "$distilled/text/train.$tgt" --half)
        [ ! -e "$data/codes" ] || parts+=(--codes "$data/codes")
    fi
    "$python" -m specdec_plugins.commands.pack --verifier "$verifier" --drafter "$out/drafter.pt" "${parts[@]}" --output "$out/model"
}

for index in "${!stages[@]}"; do
    stage=${stages[index]} following=("${stages[@]:index + 1}")
    say "${folder:-$preset}: $stage${following[0]:+, then$(printf ' %s,' "${following[@]}" | sed 's/,$//')}"
    "stage_$stage"
done
