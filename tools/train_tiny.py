"""Train `tiny`, the checkpoint that ships with dslearn, on the standard library's own source.

    python tools/train_tiny.py OUT --minutes 100           # start, or resume what OUT holds

OUT receives `run.pt` (to resume) and `best/` (a loadable checkpoint, rewritten every 20 minutes
and at the end). Needs CPython 3.11 with its test package, and a C++ compiler for the fused parts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tokenizers import Tokenizer
from tqdm import tqdm

import tokens
from dslearn.checkpoint.storage import quantise
from dslearn.checkpoint.writer import write
from dslearn.config import Config
from dslearn.model.engram_hash import EngramHash
from dslearn.model.engram_tokens import token_map
from training.compiled import compile_parts
from training.data import Chunks
from training.evaluate import held_out_bits
from training.initial import initialise
from training.plan import phase
from training.trainer import Trainer

TINY = Path(__file__).parents[1] / "dslearn/data/tiny"
TOKENS_PER_STEP = 4096
SAVE_SECONDS, EXPORT_SECONDS = 300.0, 1200.0


def main() -> None:
    """Parse the command line and start one process per rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=100.0, help="length of the run")
    parser.add_argument("--ranks", type=int, default=os.cpu_count() or 1, help="one thread each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="token cache (default OUT/tokens)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokens.load("train", args.cache or args.out / "tokens")
    rendezvous = (args.out / "rendezvous").absolute()
    rendezvous.unlink(missing_ok=True)
    # Freed blocks stay with the process: otherwise every step faults its memory in again.
    os.environ.update(MALLOC_MMAP_THRESHOLD_=str(1 << 30), MALLOC_TRIM_THRESHOLD_=str(4 << 30))
    mp.spawn(run, (args, f"file://{rendezvous}"), nprocs=args.ranks)


def run(rank: int, args: argparse.Namespace, rendezvous: str) -> None:
    """Train as one of `args.ranks` ranks until the run's minutes are spent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=args.ranks)
    cfg = Config.from_file(TINY)
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    mapping = torch.from_numpy(token_map(tokenizer))
    hashing = EngramHash(cfg, mapping, int(mapping[cfg.engram_pad_token_id]))
    trainer = Trainer(cfg, hashing, args.ranks)
    initialise(trainer.model, args.seed)
    progress = {"seconds": 0.0, "seen": 0, "best": float("inf")}
    saved = args.out / "run.pt"
    if saved.exists():
        data = torch.load(saved, weights_only=True)
        trainer.model.load_state_dict(data["model"])
        trainer.optimiser.load_state_dict(data["optimiser"])
        progress = data["progress"]
    compile_parts(trainer.model)
    loop(rank, args, trainer, progress)
    dist.destroy_process_group()


def loop(rank: int, args: argparse.Namespace, trainer: Trainer, progress: dict[str, float]) -> None:
    """Steps, progress, saving, exporting; rank 0 writes."""
    cache = args.cache or args.out / "tokens"
    chunks = Chunks(tokens.load("train", cache).ids, args.seed)
    total = args.minutes * 60
    bar = tqdm(total=round(args.minutes, 1), unit="min", disable=rank > 0, mininterval=10)
    bar.update(progress["seconds"] / 60)
    last_save = last_export = progress["seconds"]
    smooth, clock = 0.0, time.monotonic()
    log = (args.out / "log.jsonl").open("a") if rank == 0 else None
    while progress["seconds"] < total:
        now = phase(progress["seconds"] / total)
        rows = TOKENS_PER_STEP // now.length
        share = chunks.batch(int(progress["seen"]), now.length, rows)[rank :: args.ranks]
        figures = trainer.step(share, now)
        # All ranks follow rank 0's clock, so that they agree on every phase.
        spent = torch.tensor([time.monotonic() - clock])
        dist.broadcast(spent, 0)
        clock = time.monotonic()
        progress["seconds"] += float(spent)
        progress["seen"] += rows * now.length
        smooth = float(figures[0]) if not smooth else 0.98 * smooth + 0.02 * float(figures[0])
        bar.update(float(spent) / 60)
        speed = rows * now.length / float(spent)
        bar.set_postfix_str(f"loss {smooth:.3f} index {float(figures[1]):.3f} {speed:.0f} tok/s")
        if log:
            record = {**progress, "loss": float(figures[0]), "index": float(figures[1])}
            log.write(json.dumps(record | {"speed": round(speed)}) + "\n")
            log.flush()
        done = progress["seconds"] >= total
        if rank == 0 and (done or progress["seconds"] - last_save > SAVE_SECONDS):
            save(args.out, trainer, progress)
            last_save = progress["seconds"]
        if done or progress["seconds"] - last_export > EXPORT_SECONDS:
            last_export = progress["seconds"]
            if rank == 0:
                export(args.out, trainer, progress, cache)
            dist.barrier()
            clock = time.monotonic()


def save(out: Path, trainer: Trainer, progress: dict[str, float]) -> None:
    """Write `run.pt` so that an interruption never leaves half a file."""
    state = {
        "model": trainer.model.state_dict(),
        "optimiser": trainer.optimiser.state_dict(),
        "progress": progress,
    }
    torch.save(state, out / "run.pt.new")
    (out / "run.pt.new").replace(out / "run.pt")


def export(out: Path, trainer: Trainer, progress: dict[str, float], cache: Path) -> None:
    """Write the checkpoint in the released storage; replace `best/` if it reads better."""
    raw = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    dense = {name: p.detach().clone() for name, p in trainer.named.items()}
    fresh = out / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    write(fresh, raw, quantise(trainer.cfg, dense))
    plain = {k: v for k, v in raw.items() if k != "quantization_config"}
    write(out / "plain", plain, dense)  # the full weights, to tell what quantisation costs
    for name in ("tokenizer.json", "tokenizer_config.json"):
        for folder in (fresh, out / "plain"):
            shutil.copy(TINY / name, folder / name)
    bits = held_out_bits(fresh, cache, limit=40_000)
    best = progress["best"]
    print(f"\nheld-out bits per byte, quantised: {bits:.4f} (best {best:.4f})", flush=True)
    if bits < best:
        progress["best"] = bits
        shutil.rmtree(out / "best", ignore_errors=True)
        fresh.rename(out / "best")


if __name__ == "__main__":
    main()
