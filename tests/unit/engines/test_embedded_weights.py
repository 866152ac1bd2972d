"""Versions in memory and adapters on disk: merged right, checked before use, evicted only when free (L12)."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from practicum.engines.embedded.adapter import linear_modules, read_adapter, tensor_name, write_adapter
from practicum.engines.embedded.settings import LoraSettings
from practicum.engines.embedded.weights import PolicyWeights
from practicum.errors import Conflict, CorruptArtifact, NotFound
from practicum.types.digests import folder_digest

LORA = LoraSettings(rank=4, alpha=6)
IDS = torch.arange(40)[None]


@pytest.fixture
def published(model, make_adapter, tmp_path):
    folder = tmp_path / "adapter"
    digest = write_adapter(folder, make_adapter(model, 1), LORA, base_model="tiny", note="A note.")
    return folder, digest


def _logits(served):
    return served.model(input_ids=IDS).logits


def test_a_version_is_the_base_plus_scaled_ba(model, make_adapter, make_model, published):
    weights = PolicyWeights(model)
    weights.load(1, *published)
    by_hand, state = make_model(), make_adapter(model, 1)
    for name, module in linear_modules(by_hand).items():
        module.weight.add_(1.5 * state[tensor_name(name, "B")] @ state[tensor_name(name, "A")])
    torch.testing.assert_close(_logits(weights.acquire(1)), by_hand(input_ids=IDS).logits, atol=1e-4, rtol=0)


def test_peft_reads_what_we_publish(model, make_model, published):
    from peft import PeftModel

    weights = PolicyWeights(model)
    weights.load(1, *published)
    theirs = PeftModel.from_pretrained(make_model(), published[0])(input_ids=IDS).logits
    torch.testing.assert_close(_logits(weights.acquire(1)), theirs, atol=1e-4, rtol=0)
    assert {path.name for path in published[0].iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert "A note." in (published[0] / "README.md").read_text()


def test_the_base_is_never_written_and_is_shared(model, published):
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    weights = PolicyWeights(model)
    weights.load(1, *published)
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, before[name])
    served = weights.acquire(1).model
    adapted = {f"{name}.weight" for name in linear_modules(model)}
    for name, tensor in served.named_parameters():
        assert (tensor.data_ptr() == dict(model.named_parameters())[name].data_ptr()) == (name not in adapted)


def test_put_is_the_same_as_load(model, make_adapter, published):
    weights = PolicyWeights(model)
    weights.load(1, *published)
    weights.put(2, make_adapter(model, 1), LORA.scaling)
    assert torch.equal(_logits(weights.acquire(1)), _logits(weights.acquire(2)))


def test_a_version_without_adapter_is_the_base(model):
    weights = PolicyWeights(model)
    weights.load(5, None, "")
    assert torch.equal(_logits(weights.acquire(5)), _logits(weights.acquire(0)))


def test_loading_again_changes_nothing_and_other_weights_are_refused(model, make_adapter, published, tmp_path):
    weights = PolicyWeights(model)
    weights.load(1, *published)
    first = weights.acquire(1)
    weights.load(1, *published)
    assert weights.acquire(1) is first
    digest = write_adapter(tmp_path / "other", make_adapter(model, 2), LORA, base_model="tiny")
    with pytest.raises(Conflict, match="other weights"):
        weights.load(1, tmp_path / "other", digest)


def test_the_digest_covers_every_byte(published):
    folder, digest = published
    assert folder_digest(folder) == digest
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert folder_digest(folder) != digest
        path.write_bytes(content)
    (folder / "extra").write_text("")
    assert folder_digest(folder) != digest
    (folder / "extra").unlink()
    (folder / "link").symlink_to(folder / "README.md")
    with pytest.raises(ValueError, match="symbolic link"):
        folder_digest(folder)


def _change_config(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _change_tensors(folder, change):
    path = folder / "adapter_model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)


def _set(name, value):
    return lambda state: state.__setitem__(name, value)


FIRST = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"
DAMAGE = {
    "missing tensor": lambda folder: _change_tensors(folder, lambda state: state.pop(FIRST)),
    "unknown tensor": lambda folder: _change_tensors(folder, _set("base_model.model.x.lora_A.weight", torch.ones(1))),
    "wrong shape": lambda folder: _change_tensors(folder, _set(FIRST, torch.ones(4, 7))),
    "not finite": lambda folder: _change_tensors(folder, lambda state: state[FIRST].view(-1)[3].fill_(float("nan"))),
    "truncated": lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\x00" * 100),
    "no weights": lambda folder: (folder / "adapter_model.safetensors").unlink(),
    "config is not JSON": lambda folder: (folder / "adapter_config.json").write_text("{"),
    "dora": lambda folder: _change_config(folder, use_dora=True),
    "rslora": lambda folder: _change_config(folder, use_rslora=True),
    "biases": lambda folder: _change_config(folder, bias="all"),
    "another rank": lambda folder: _change_config(folder, r=8),
    "rank zero": lambda folder: _change_config(folder, r=0),
    "no folder": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_adapter_is_refused_and_the_others_stay(damage, model, published, make_adapter):
    folder, _ = published
    weights = PolicyWeights(model)
    weights.put(1, make_adapter(model, 3), 1.0)
    before = _logits(weights.acquire(1))
    DAMAGE[damage](folder)
    digest = folder_digest(folder) if folder.exists() else "gone"
    with pytest.raises(CorruptArtifact):
        weights.load(2, folder, digest)
    assert weights.versions == (0, 1)
    assert torch.equal(_logits(weights.acquire(1)), before)


def test_a_wrong_digest_is_refused(model, published):
    with pytest.raises(CorruptArtifact, match="digest"):
        PolicyWeights(model).load(1, published[0], "0" * 64)


def test_an_adapter_without_effect_is_refused(model, make_adapter):
    weights = PolicyWeights(model)
    with pytest.raises(CorruptArtifact, match="changes no output"):
        weights.put(1, make_adapter(model, 1), 0.0)
    fresh = {name: torch.zeros_like(t) if ".lora_B." in name else t for name, t in make_adapter(model, 1).items()}
    weights.put(1, fresh, 1.0)
    assert torch.equal(_logits(weights.acquire(1)), _logits(weights.acquire(0)))


def test_the_least_recently_used_free_version_is_evicted(model, make_adapter):
    weights = PolicyWeights(model, max_resident=2)
    weights.put(1, make_adapter(model, 1), 1.0)
    weights.set_live(1)
    weights.put(2, make_adapter(model, 2), 1.0)
    held = weights.acquire(2)
    weights.put(3, make_adapter(model, 3), 1.0)
    assert weights.versions == (0, 1, 2, 3)
    weights.put(4, make_adapter(model, 4), 1.0)
    assert weights.versions == (0, 1, 2, 4)
    weights.release(held)
    assert weights.versions == (0, 1, 4)
    assert held.retired
    with pytest.raises(NotFound):
        weights.acquire(2)


def test_a_version_in_use_is_not_exchanged(model, make_adapter):
    weights = PolicyWeights(model)
    weights.put(1, make_adapter(model, 1), 1.0)
    held = weights.acquire(1)
    with pytest.raises(Conflict, match="running"):
        weights.put(1, make_adapter(model, 2), 1.0)
    weights.release(held)
    weights.put(1, make_adapter(model, 2), 1.0)
    assert weights.acquire(1) is not held
    with pytest.raises(Conflict):
        weights.put(0, make_adapter(model, 2), 1.0)


def test_dropping(model, make_adapter):
    weights = PolicyWeights(model)
    weights.put(1, make_adapter(model, 1), 1.0)
    weights.drop(1)
    assert weights.versions == (0,)
    for version in (0, 1):
        with pytest.raises((Conflict, NotFound)):
            weights.drop(version)


def test_publishing_twice_is_allowed_and_overwriting_is_not(model, make_adapter, published):
    folder, digest = published
    assert write_adapter(folder, make_adapter(model, 1), LORA, base_model="tiny", note="A note.") == digest
    with pytest.raises(Conflict, match="never overwritten"):
        write_adapter(folder, make_adapter(model, 2), LORA, base_model="tiny")
    assert folder_digest(folder) == digest
    assert [path.name for path in folder.parent.iterdir()] == ["adapter"]


def test_reading_gives_back_what_was_written(model, make_adapter, published):
    adapter = read_adapter(published[0], model, digest=published[1])
    assert adapter.rank == 4 and adapter.scaling == 1.5
    for name, tensor in make_adapter(model, 1).items():
        assert torch.equal(adapter.state[name], tensor)
