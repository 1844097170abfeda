"""How golden prompts are found, on a random checkpoint: noise, decoding, and the rules of text."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from dslearn.model.arith import Arith
from dslearn.numerics import Numerics

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
search = importlib.import_module("golden_search")

PROMPT = "import os\n"


@pytest.fixture(scope="module")
def steady(lm) -> tuple[list[int], list[int], list[float]]:
    """A prompt, its greedy tokens, and their leads."""
    ids = lm.encode(PROMPT)
    tokens, logits = search.decode(lm, ids, search.AHEAD + 2)
    return ids, tokens, search.leads(logits, tokens).tolist()


@pytest.mark.parametrize("method", ["linear", "linear_fp32", "pairs"])
def test_every_product_is_disturbed_by_about_2_to_the_minus_22(lm, method):
    a = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(1))
    b = torch.randn(2, 80, 96, generator=torch.Generator().manual_seed(2))
    right = b if method == "pairs" else b[0]
    usual = getattr(Arith(lm.model.numerics), method)(a, right)
    noisy = getattr(search.Noisy(lm.model.arith, 0), method)(a, right)
    relative = ((noisy - usual) / usual).double()
    assert 0.8 < relative.std() / 2.0**-22 < 1.2 and relative.abs().max() < 6 * 2.0**-22
    other = getattr(search.Noisy(lm.model.arith, 1), method)(a, right)
    assert not torch.equal(noisy, other), "another seed is another noise"


def test_grouped_products_are_disturbed_once(lm):
    x = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2))
    usual = Arith(lm.model.numerics).grouped(x, weight)
    relative = (search.Noisy(lm.model.arith, 0).grouped(x, weight) - usual) / usual
    assert relative.abs().min() < 2.0**-22 < relative.abs().max() < 6 * 2.0**-22
    exact = Arith(Numerics(row_invariant=True))
    relative = (search.Noisy(exact, 0).grouped(x, weight) - exact.grouped(x, weight)) / usual
    assert 2.0**-22 < relative.abs().max() < 6 * 2.0**-22


def test_bf16_reruns_round_every_product(lm):
    x, w = torch.randn(5, 64), torch.randn(7, 64)
    noisy = search.Noisy(lm.model.arith, 0, bf16=True)
    rounded = noisy.linear(x, w)
    assert torch.equal(rounded, rounded.bfloat16().float())
    head = noisy.linear_fp32(x, w)
    assert not torch.equal(head, head.bfloat16().float()), "the chip keeps these in fp32"
    assert (rounded - x @ w.T).abs().max() < 2.0**-7 * (x @ w.T).abs().max()


def test_the_model_computes_with_the_noise_and_then_as_before(lm):
    ids = torch.tensor([lm.encode(PROMPT)])
    before = lm.forward(ids)
    with search.arithmetic(lm.model, search.Noisy(lm.model.arith, 0)):
        inside = lm.forward(ids)
    assert not torch.equal(inside, before)
    assert torch.equal(lm.forward(ids), before)
    with pytest.raises(KeyError), search.arithmetic(lm.model, search.Noisy(lm.model.arith, 0)):
        raise KeyError
    assert torch.equal(lm.forward(ids), before), "restored after an error too"


def test_reruns_differ_row_by_row_and_are_as_many_as_asked(lm):
    ids, tokens = lm.encode(PROMPT), [5, 6, 7]
    got = torch.cat(list(search.reruns(lm, ids, tokens, 11, bf16=False)))
    assert got.shape == (11, 3, 2048)
    assert len({row.numpy().tobytes() for row in got}) == 11
    again = torch.cat(list(search.reruns(lm, ids, tokens, 11, bf16=False)))
    assert torch.equal(got, again), "the same seeds"
    coarse = next(search.reruns(lm, ids, tokens, 2, bf16=True))
    plain = search.teacher_forced(lm, ids, tokens, 1)
    assert (coarse - plain).abs().max() > (got - plain).abs().median()


def test_a_batch_decodes_what_each_prompt_alone_does(lm):
    prompts = [lm.encode(text) for text in (PROMPT, "x = ", "class Name:\n    def f(self):\n")]
    alone = [search.decode(lm, ids, 8) for ids in prompts]
    together = search.decode_batch(lm, prompts, 8, floor=0.0)
    for index, tokens in together.items():
        # A near tie may fall the other way in a batch; a wrong position would not agree at all.
        same = sum(a == b for a, b in zip(tokens, alone[index][0], strict=True))
        assert same >= 4
    for tokens, logits in alone:
        assert logits.shape == (8, 2048) and logits.argmax(-1).tolist() == tokens


def test_the_floor_throws_out(lm):
    prompts = [lm.encode(PROMPT)]
    tokens, logits = search.decode(lm, prompts[0], 8)
    smallest = float(search.leads(logits, tokens).min())
    assert search.decode_batch(lm, prompts, 8, floor=smallest + 1) == {}
    assert search.decode_batch(lm, [], 8, floor=0.0) == {}


def test_leads_are_to_the_best_other_token():
    logits = torch.tensor([[[1.0, 5.0, 4.0], [2.0, 2.0, 0.0]], [[9.0, 5.0, 4.0], [3.0, 2.0, 0.0]]])
    assert search.leads(logits, [1, 0]).tolist() == [[1.0, 0.0], [-4.0, 1.0]]


def test_the_4_gram_rule_and_its_companions(lm):
    assert search.most_repeated([1, 2, 3]) == 0
    assert search.most_repeated([1, 2, 3, 4, 9, 1, 2, 3, 4]) == 2
    assert search.most_repeated([7] * 6) == 3
    once, line = list(range(10, 30)), [40, 41, 42, 43, 44]
    assert search.allowed(lm, once)
    assert search.allowed(lm, [*line, *once[:6], *line])
    assert not search.allowed(lm, [*line, *once[:6], *line, 50, *line]), "three times"
    assert not search.allowed(lm, [*once, 1]), "the end token"
    assert not search.allowed(lm, [*once, 2047]), "a reserved token"
    assert not search.allowed(lm, [10, 11, 10, 12, 10, 13, 10, 14, 10, 15]), "drones on"


@pytest.mark.parametrize(
    "prompt, text, code",
    [
        ("def f(x):\n", "    return x\n\ny = (", True),
        ("    def f(self", ", x):\n        self.x = x\n        for", True),
        ("def f(x):\n", "    if x:\n        re", False),  # nothing but the header is complete
        ("x = 1\n", "for y in x:\n    pass\nif y:\n    retu", True),
        ("x = (\n", "1 2 3\nfoo bar", False),
        ("x = ", "1", False),
        ("x", "y = 3\nz = ", True),
    ],
)
def test_what_reads_as_code(prompt, text, code):
    assert search.reads_as_code(prompt, text) is code


def test_windows_are_line_beginnings_in_a_fixed_order(lm):
    texts = ["import os\n\n\nclass A:\n    def f(self):\n        return 'é'\n" * 4, "y = 2\n" * 30]
    found = list(search.windows(lm, texts, 9, seed=0))
    assert len(found) > 10
    for ids in found:
        assert len(ids) == 9 and ids[0] == 0
        text = lm.tokenizer.decode(ids[1:]).removesuffix("\ufffd")
        places = [(whole, whole.find(text)) for whole in texts]
        assert any(at == 0 or (at > 0 and whole[at - 1] == "\n") for whole, at in places)
    assert found == list(search.windows(lm, texts, 9, seed=0))
    assert sorted(found) == sorted(search.windows(lm, texts, 9, seed=1)) != found


def test_a_promising_prompt_is_one_whose_continuation_the_model_foresees(lm, steady):
    ids, tokens, leads = steady
    window = [*ids, *tokens[: search.AHEAD]]
    size, floor = len(ids), min(leads[: search.AHEAD]) * 0.9
    assert list(search.promising(lm, [window], size, size, floor)) == [(PROMPT, ids)]
    assert list(search.promising(lm, [window], size, size, min(leads) * 1.2 + 0.01)) == []
    window[-1] = (window[-1] + 1) % 2000
    assert list(search.promising(lm, [window], size, size, floor)) == []
    longer = [*ids, *tokens]
    assert [i for _, i in search.promising(lm, [longer], size - 2, size + 2, floor)] == [ids]
