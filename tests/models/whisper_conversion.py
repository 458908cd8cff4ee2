"""Whisper from CTranslate2's format to that of transformers: the way back from its converter.

The layout of ``model.bin`` (binary version 6) is that of ``ctranslate2.specs.model_spec``, the
names are those of ``ctranslate2.converters.transformers.WhisperLoader``. CTranslate2
fuses query, key and value of an attention into one matrix, key and value where it looks across,
and has zeros for the bias of keys, which Whisper lacks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

_VERSION = 6
_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
"""``ctranslate2.specs.model_spec``: the order of its numeric types."""

Variables = dict[str, np.ndarray[Any, Any]]


def read_variables(content: bytes) -> Variables:
    """All variables of a CTranslate2 Whisper by name. Raises ValueError for another model."""
    reader = _Reader(content)
    version, name, _ = reader.number("I"), reader.text(), reader.number("I")
    if (version, name) != (_VERSION, "WhisperSpec"):
        raise ValueError(f"{name} of binary version {version} is no WhisperSpec of {_VERSION}.")
    variables = dict(reader.variable() for _ in range(reader.number("I")))
    for _ in range(reader.number("I")):
        alias, stored = reader.text(), reader.text()
        variables[alias] = variables[stored]
    return variables


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def number(self, kind: str) -> int:
        value: int = struct.unpack_from(f"<{kind}", self._content, self._at)[0]
        self._at += struct.calcsize(f"<{kind}")
        return value

    def text(self) -> str:
        """A length with the closing zero, then the characters."""
        return self._bytes(self.number("H"))[:-1].decode()

    def variable(self) -> tuple[str, np.ndarray[Any, Any]]:
        name = self.text()
        shape = [self.number("I") for _ in range(self.number("B"))]
        kind = _TYPES[self.number("B")]
        content = self._bytes(self.number("I"))
        return name, np.frombuffer(content, kind).reshape(shape)

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._content[self._at - count : self._at]


def state_of(variables: Variables) -> dict[str, torch.Tensor]:
    """The state dictionary of WhisperForConditionalGeneration, in float32."""
    state: Variables = {"proj_out.weight": variables["decoder/projection/weight"]}
    for side in ("encoder", "decoder"):
        own = {name.removeprefix(f"{side}/"): v for name, v in variables.items() if side in name}
        state |= {f"model.{side}.{name}": value for name, value in _half(own).items()}
    return {
        name: torch.from_numpy(np.array(value, np.float32, copy=True))
        for name, value in state.items()
    }


def _half(own: Variables) -> Variables:
    """Encoder or decoder."""
    found = {"embed_positions.weight": own["position_encodings/encodings"]}
    if "embeddings/weight" in own:
        found["embed_tokens.weight"] = own["embeddings/weight"]
    for name in ("conv1", "conv2"):
        found |= _weight_and_bias(own, name, name) if f"{name}/weight" in own else {}
    found |= _norm(own, "layer_norm", "layer_norm")
    for layer in range(_layers(own)):
        stored, name = f"layer_{layer}", f"layers.{layer}"
        found |= _attention(own, f"{stored}/self_attention", f"{name}.self_attn", "qkv")
        if f"{stored}/attention/linear_0/weight" in own:
            found |= _attention(own, f"{stored}/attention", f"{name}.encoder_attn", "q", "kv")
        found |= _norm(own, f"{stored}/ffn/layer_norm", f"{name}.final_layer_norm")
        found |= _weight_and_bias(own, f"{stored}/ffn/linear_0", f"{name}.fc1")
        found |= _weight_and_bias(own, f"{stored}/ffn/linear_1", f"{name}.fc2")
    return found


def _attention(own: Variables, stored: str, name: str, *fused: str) -> Variables:
    """``fused``: which projections each stored matrix holds; the output's comes after them."""
    found = _norm(own, f"{stored}/layer_norm", f"{name}_layer_norm")
    for index, letters in enumerate(fused):
        for part in ("weight", "bias"):
            pieces = np.split(own[f"{stored}/linear_{index}/{part}"], len(letters))
            found |= {
                f"{name}.{letter}_proj.{part}": piece
                for letter, piece in zip(letters, pieces, strict=True)
            }
    del found[f"{name}.k_proj.bias"]
    return found | _weight_and_bias(own, f"{stored}/linear_{len(fused)}", f"{name}.out_proj")


def _weight_and_bias(own: Variables, stored: str, name: str) -> Variables:
    return {f"{name}.{part}": own[f"{stored}/{part}"] for part in ("weight", "bias")}


def _norm(own: Variables, stored: str, name: str) -> Variables:
    return {f"{name}.weight": own[f"{stored}/gamma"], f"{name}.bias": own[f"{stored}/beta"]}


def _layers(own: Variables) -> int:
    return len({name.split("/")[0] for name in own if name.startswith("layer_")} - {"layer_norm"})


def convert_whisper(files: Mapping[str, bytes], folder: Path) -> Path:
    """A folder that transformers loads Whisper from. ``files`` are those of a CTranslate2 model:
    model.bin, config.json and tokenizer.json."""
    state = state_of(read_variables(files["model.bin"]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(files["tokenizer.json"])
    tokenizer: Any = WhisperTokenizer.from_pretrained(folder)
    identity = tokenizer.convert_tokens_to_ids
    width = state["model.encoder.conv1.weight"].shape
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in {
            "layers": 1 + max(int(n.split(".")[3]) for n in state if f"{side}.layers" in n),
            "attention_heads": width[0] // 64,
            "ffn_dim": len(state[f"model.{side}.layers.0.fc1.bias"]),
        }.items()
    }
    special = {
        "decoder_start_token_id": identity("<|startoftranscript|>"),
        **dict.fromkeys(
            ("bos_token_id", "eos_token_id", "pad_token_id"), identity("<|endoftext|>")
        ),
    }
    config = WhisperConfig(
        vocab_size=len(state["proj_out.weight"]),
        d_model=width[0],
        num_mel_bins=width[1],
        max_source_positions=len(state["model.encoder.embed_positions.weight"]),
        max_target_positions=len(state["model.decoder.embed_positions.weight"]),
        **sides,
        **special,
    )
    model: Any = WhisperForConditionalGeneration(config)
    model.load_state_dict(state)
    told = json.loads(files["config.json"])
    model.generation_config = GenerationConfig(
        **special,
        is_multilingual=True,
        lang_to_id={
            token: identity(token)
            for token in (f"<|{name}|>" for name in LANGUAGES)
            if identity(token) in told["lang_ids"]
        },
        task_to_id={name: identity(f"<|{name}|>") for name in ("translate", "transcribe")},
        no_timestamps_token_id=identity("<|notimestamps|>"),
        suppress_tokens=told["suppress_ids"],
        begin_suppress_tokens=told["suppress_ids_begin"],
        alignment_heads=told["alignment_heads"],
        max_length=config.max_target_positions,
    )
    model.save_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    return folder
