#!/usr/bin/env bash
# Train drafters that differ in one thing, on one verifier's data, and see what of their drafts is accepted:
#     benchmarks/ablation.sh RUN UPDATES SEED VARIANT ...
# RUN is a finished folder of ./train.sh multi30k --mono FILE, or of ./train.sh small.en-de. Each variant goes to RUN/ablation/VARIANT.SEED; a finished one is skipped.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
run=$(realpath "$1") updates=$2 seed=$3; shift 3
python=${PYTHON:-$root/.venv/bin/python}
export PYTHONPATH=$root PYTHONWARNINGS=ignore SPECDEC_MATMUL=bf16
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 GLIBC_TUNABLES=glibc.malloc.hugetlb=1
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=64
shape=$("$python" - "$run/verifier.pt" <<'PYTHON'
import sys
from specdec_plugins.formats.checkpoint import load, model_args
args = vars(model_args(load(sys.argv[1])))
for side in ("encoder", "decoder"):
    for part in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        print(f"--{side}-{part}".replace("_", "-"), args[f"{side}_{part}"])
    if args[f"{side}_normalize_before"]:
        print(f"--{side}-normalize-before")
PYTHON
)

train() { # train FOLDER DATA "INIT OPTIONS" TRAINING OPTIONS...
    local out=$1 data=$2 init=$3; shift 3
    # shellcheck disable=SC2086
    "$python" "$root/encoder_initial.py" --verifier "$run/verifier.pt" --output "$out/init.pt" --data "$data" --seed "$seed" $init
    # shellcheck disable=SC2086
    "$python" -m fairseq_cli.train "$data" -s en -t de --user-dir "$root/specdec_plugins" --cpu --save-dir "$out" --seed "$seed" \
        --task translation_lev_modified --noise block_mask --finetune-from-model "$out/init.pt" $shape --share-all-embeddings \
        --optimizer adam --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 5 --dropout 0.1 \
        --lr 2e-3 --warmup-updates 100 --max-update "$updates" --total-up "$updates" --num-workers 0 --required-batch-size-multiple 1 \
        --log-format json --log-interval 50 --no-epoch-checkpoints --save-interval 1000000 --validate-interval 1000000 \
        --save-interval-updates 50 --validate-interval-updates "$updates" --keep-interval-updates 3 "$@" >"$out/train.log" 2>&1
    # shellcheck disable=SC2046
    "$python" -m specdec_plugins.commands.average --inputs $(ls "$out"/checkpoint_*_*.pt | sort -V | tail -n 3) --output "$out/drafter.pt"
}

for variant in "$@"; do
    out=$run/ablation/$variant.$seed data=$run/distilled/bin layers=2 width=128 blocks=4 decay=0.85 block=8 freeze=--freeze-encoder
    start=--init-decoder arch= loss= rate="--max-tokens 2048 --lr-scheduler polynomial_decay --total-num-update $updates"
    [ ! -e "$out/folder" ] || continue
    mkdir -p "$out"
    case $variant in
        published*) # Xia et al. 2023: bidirectional, its own encoder, as deep as the verifier; glancing
            layers=4 block=12 freeze= start=--apply-bert-init arch="--arch block --src-embedding-copy"
            glancing="--criterion glat_loss --label-smoothing 0.1 --start-p" loss="$glancing 0.5 --minus-p 0.2"
            causal="--arch block_causal --successor-width" many="--criterion block_loss --label-smoothing 0.1 --blocks"
            rate="--max-tokens 4096 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7" ;;
    esac
    case $variant in
        final | published) ;;
        no-successor) width=0 ;;
        one-block) blocks=1 ;;
        no-decay) decay=1 ;;
        depth-1) layers=1 ;;
        depth-4) layers=4 ;;
        own-encoder) freeze= ;;
        fresh-decoder) start= ;;
        block-12) block=12 ;;
        no-mono | published-no-mono)
            data=$run/ablation/no-mono
            if [ ! -e "$data/bin" ]; then
                mkdir -p "$data/text"
                for language in en de; do
                    head -n "$(wc -l <"$run/data/bpe/train.$language")" "$run/distilled/text/train.$language" >"$data/text/train.$language"
                done
                sh "$root/data/prepare.sh" --bpe-applied --source-lang en --target-lang de --dict "$run/data/bin/dict.en.txt" \
                    --train "$data/text/train" --valid "$run/distilled/text/valid" --output "$data"
            fi
            data=$data/bin ;;
        published-small) layers=2 freeze=--freeze-encoder start=--init-decoder ;; # with what carries over
        published-no-glancing) loss="$glancing 0 --minus-p 0" ;;
        published-shared-encoder) freeze=--freeze-encoder ;;
        published-depth-2) layers=2 ;;
        published-block-8) block=8 ;;
        published-init-decoder) start=--init-decoder ;;
        published-causal) arch="$causal 0" loss="$many 1" ;;
        published-causal-blocks) arch="$causal 0" loss="$many 4" ;;
        published-causal-decay) arch="$causal 0" loss="$many 1 --position-decay 0.85" ;;
        published-causal-successor) arch="$causal 128" loss="$many 1" ;;
        *) echo "ablation.sh: no variant '$variant'" >&2; exit 2 ;;
    esac
    arch=${arch:---arch block_causal --successor-width $width}
    loss=${loss:---criterion block_loss --blocks $blocks --position-decay $decay}
    # shellcheck disable=SC2086
    train "$out" "$data" "$arch --decoder-layers $layers $freeze $start" $arch $loss --block-size $block $rate --decoder-layers $layers $freeze
    "$python" -m specdec_plugins.commands.pack --verifier "$run/verifier.pt" --drafter "$out/drafter.pt" --data "$run/data/bin" \
        --codes "$run/data/codes" -s en -t de --block-size 8 --output "$out/folder" >"$out/pack.log"
    "$python" "$root/benchmarks/decoding.py" acceptance --dtype int8 --threads 1 --block-sizes 8 --model "$out/folder" \
        --source "$run/data/raw/test.en" | tee "$out/acceptance.log"
done
