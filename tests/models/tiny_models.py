"""Random-weight models of the very classes that the registry names, saved to a folder.

They differ from published checkpoints by size and weights only: the code that
loads them is the product's own.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertModel,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    RTDetrImageProcessor,
    RTDetrResNetConfig,
    RTDetrV2Config,
    RTDetrV2ForObjectDetection,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from models.registry import REGISTRY
from models.tasks import (
    CLASSIFY_CONTENT,
    DESCRIBE_SCENES,
    DETECT_OBJECTS,
    EMBED_PICTURES,
    EMBED_TEXT,
    TRANSCRIBE,
    TRANSLATE_TEXT,
    Task,
)
from models.weights import Checkpoint

SEED = 7
CTC_ALPHABET = "abcdefghijklmnopqrstuvwxyz'"


def _byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes with (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + n) for n in range(len(others))]


def whisper_tokenizer() -> Any:
    """Whisper's tokens without merges: every byte, then the special ones in their usual order."""
    letters = {letter: number for number, letter in enumerate(_byte_alphabet())}
    tokenizer = WhisperTokenizer(vocab=letters, merges=[])
    special = ["<|endoftext|>", "<|startoftranscript|>"]
    special += [f"<|{language}|>" for language in LANGUAGES]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    special += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_tokens(special, special_tokens=True)
    tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])
    return tokenizer


TINY_WHISPER: dict[str, Any] = {
    "num_mel_bins": 80,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "d_model": 16,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_target_positions": 64,
    "init_std": 0.5,
}


def save_tiny_whisper(folder: Path, *, mel_bins: int = 80) -> Path:
    """A Whisper of two layers and 16 dimensions with the full vocabulary of special tokens."""
    return save_whisper(folder, TINY_WHISPER | {"num_mel_bins": mel_bins})


def save_whisper(
    folder: Path, sizes: dict[str, Any], *, end_may_be_said: bool = True, **generation: Any
) -> Path:
    """A Whisper of the given sizes; ``generation`` adds to how it is to be decoded."""
    torch.manual_seed(SEED)
    tokenizer = whisper_tokenizer()
    identity = tokenizer.convert_tokens_to_ids
    vocabulary = {"vocab_size": len(tokenizer)} | sizes
    config = WhisperConfig(
        **vocabulary,
        decoder_start_token_id=identity("<|startoftranscript|>"),
        bos_token_id=identity("<|endoftext|>"),
        eos_token_id=identity("<|endoftext|>"),
        pad_token_id=identity("<|endoftext|>"),
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    model = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=config.decoder_start_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        is_multilingual=True,
        lang_to_id={f"<|{name}|>": identity(f"<|{name}|>") for name in LANGUAGES},
        task_to_id={name: identity(f"<|{name}|>") for name in ("translate", "transcribe")},
        no_timestamps_token_id=identity("<|notimestamps|>"),
        # As the published checkpoints do: nothing but text and the end may be said.
        suppress_tokens=list(range(257 if end_may_be_said else 256, config.vocab_size)),
        begin_suppress_tokens=[identity("<|endoftext|>")],
        max_length=config.max_target_positions,
        **generation,
    )
    model.save_pretrained(folder)
    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    return folder


def save_tiny_translator(folder: Path) -> Path:
    """An M2M100 of one layer that knows the Latin letters and all of its languages.

    Its weights are pickled, as the published ones are, which have no other file.
    """
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "letters"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([letter for letter in CTC_ALPHABET for _ in range(9)]),
        model_prefix=str(model),
        model_type="char",
        vocab_size=len(CTC_ALPHABET) + 4,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    names = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *(pieces.id_to_piece(n) for n in range(3, len(pieces))),
    ]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({name: number for number, name in enumerate(names)}))
    tokenizer = M2M100Tokenizer(str(vocabulary), f"{model}.model")
    torch.manual_seed(SEED)
    config = M2M100Config(
        vocab_size=len(names) + 108,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=300,
        init_std=0.5,
    )
    translator = M2M100ForConditionalGeneration(config)
    translator.config.save_pretrained(folder)
    translator.generation_config.save_pretrained(folder)
    torch.save(translator.state_dict(), folder / "pytorch_model.bin")
    tokenizer.save_pretrained(folder)
    return folder


TINY_CTRANSLATE2 = TINY_WHISPER | {"max_target_positions": 448}
"""CTranslate2 takes it for granted that a Whisper has 448 positions, as all published ones do."""


def save_tiny_ctranslate2_whisper(folder: Path) -> Path:
    """The tiny Whisper as CTranslate2's own converter writes it."""
    with tempfile.TemporaryDirectory() as source:
        save_whisper(Path(source), TINY_CTRANSLATE2)
        from ctranslate2.converters import TransformersConverter

        converter = TransformersConverter(source, copy_files=["tokenizer.json"])
        converter.convert(str(folder), force=True)
    return folder


TINY_CTC: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": (16,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


def save_tiny_ctc(folder: Path) -> Path:
    """A wav2vec 2.0 CTC model of one layer that knows the Latin letters."""
    return save_ctc(folder, {})


def save_ctc(folder: Path, sizes: dict[str, Any]) -> Path:
    """A wav2vec 2.0 CTC model, tiny but for ``sizes``, that knows the Latin letters."""
    torch.manual_seed(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *CTC_ALPHABET]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    tokenizer = Wav2Vec2CTCTokenizer(str(vocabulary))
    config = Wav2Vec2Config(
        vocab_size=len(letters),
        pad_token_id=0,
        **(TINY_CTC | sizes),
    )
    Wav2Vec2ForCTC(config).save_pretrained(folder)
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=False)
    Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return folder


_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _chat_tokenizer(words: int = 0) -> Any:
    letters = {letter: number for number, letter in enumerate(_byte_alphabet())}
    for word in itertools.islice(itertools.product("abcdefghijklmnopqrst", repeat=4), words):
        letters["".join(word)] = len(letters)
    tokenizer = Qwen2Tokenizer(vocab=letters, merges=[])
    tokenizer.add_special_tokens(
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    )
    marks = ["<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_tokens(marks, special_tokens=True)
    return tokenizer


TINY_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "initializer_range": 0.5,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": [2, 3, 3],
        "mrope_interleaved": True,
    },
}
TINY_SIGHT: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 16,
    "out_hidden_size": 32,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}


def save_tiny_vision_language(folder: Path) -> Path:
    """A Qwen3-VL of two layers and 32 dimensions; one token a byte."""
    return save_vision_language(folder, TINY_TEXT, TINY_SIGHT, longest_edge=128)


def save_vision_language(
    folder: Path,
    text: dict[str, Any],
    sight: dict[str, Any],
    *,
    longest_edge: int,
    words: int = 0,
) -> Path:
    """A Qwen3-VL of the given sizes, whose pictures have up to ``longest_edge`` squared pixels; its
    tokenizer knows so many words of four letters, too."""
    torch.manual_seed(SEED)
    tokenizer = _chat_tokenizer(words)
    identity = tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config={"vocab_size": len(tokenizer)} | text,
        vision_config=sight,
        image_token_id=identity("<|image_pad|>"),
        video_token_id=identity("<|video_pad|>"),
        vision_start_token_id=identity("<|vision_start|>"),
        vision_end_token_id=identity("<|vision_end|>"),
    )
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[identity("<|im_end|>"), identity("<|endoftext|>")],
        pad_token_id=identity("<|endoftext|>"),
    )
    model.save_pretrained(folder)
    pictures = Qwen2VLImageProcessor(
        patch_size=16, size={"shortest_edge": 32 * 32, "longest_edge": longest_edge**2}
    )
    processor = Qwen3VLProcessor(
        pictures, tokenizer, Qwen3VLVideoProcessor(), chat_template=_CHAT_TEMPLATE
    )
    processor.save_pretrained(folder)
    return folder


def save_tiny_classifier(folder: Path) -> Path:
    """A vision transformer of one layer that tells ``normal`` from ``nsfw``."""
    torch.manual_seed(SEED)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=16,
        id2label={0: "normal", 1: "nsfw"},
        label2id={"normal": 0, "nsfw": 1},
        initializer_range=0.5,
    )
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


TINY_BACKBONE: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
TINY_DETECTOR: dict[str, Any] = {
    "encoder_in_channels": [8, 16, 16],
    "encoder_hidden_dim": 16,
    "encoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "d_model": 16,
    "decoder_in_channels": [16, 16, 16],
    "decoder_ffn_dim": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "num_queries": 10,
    "hidden_expansion": 0.5,
}


def save_tiny_object_detector(folder: Path) -> Path:
    """An RT-DETRv2 of two decoder layers that tells people, dogs and cars apart at random."""
    return save_object_detector(folder, TINY_BACKBONE, TINY_DETECTOR, side=64)


def save_object_detector(
    folder: Path,
    backbone: dict[str, Any],
    sizes: dict[str, Any],
    *,
    side: int,
    finds_things: bool = True,
) -> Path:
    """An RT-DETRv2 of the given sizes for square pictures of ``side`` pixels."""
    torch.manual_seed(SEED)
    labels = dict(enumerate(["Person", "dog", "car"]))
    config = RTDetrV2Config(
        backbone_config=RTDetrResNetConfig(**backbone),
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
        **sizes,
    )
    model = RTDetrV2ForObjectDetection(config).eval()
    with torch.no_grad():  # random classes start below any threshold
        for head in model.model.decoder.class_embed if finds_things else ():
            torch.nn.init.normal_(head.weight)
            torch.nn.init.zeros_(head.bias)
    model.save_pretrained(folder)
    RTDetrImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)
    return folder


def save_tiny_sentences(folder: Path) -> Path:
    """A BERT of one layer whose vectors are as long as the published model's; a token a word."""
    torch.manual_seed(SEED)
    words = [
        "<pad>",
        "<unk>",
        *["good", "morning", "the", "fox", "runs", "red", "a", "car", "stops", "here"],
    ]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=128
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=384,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    return folder


TINY_TOWER: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def save_tiny_pictures(folder: Path) -> Path:
    """A SigLIP with both towers of one layer."""
    return save_pictures(folder, TINY_TOWER | {"vocab_size": 16}, TINY_TOWER, side=32)


def save_pictures(folder: Path, text: dict[str, Any], sight: dict[str, Any], *, side: int) -> Path:
    """A SigLIP for square pictures of ``side`` pixels, vectors as long as the published, a token a
    word."""
    torch.manual_seed(SEED)
    words = ["<pad>", "<unk>", *["a", "red", "blue", "car", "on", "the", "beach", "at", "night"]]
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=64
    ).save_pretrained(folder)
    sight = sight | {"image_size": side, "patch_size": 16}
    config = SiglipConfig(text_config=text, vision_config=sight)
    SiglipModel(config).save_pretrained(folder)
    SiglipImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)
    return folder


SAVERS: dict[tuple[Task[Any], str], Callable[[Path], Path]] = {
    (TRANSCRIBE, "model"): save_tiny_whisper,
    (TRANSCRIBE, "align_en"): save_tiny_ctc,
    (TRANSCRIBE, "align"): save_tiny_ctc,
    (TRANSLATE_TEXT, "model"): save_tiny_translator,
    (DESCRIBE_SCENES, "model"): save_tiny_vision_language,
    (CLASSIFY_CONTENT, "model"): save_tiny_classifier,
    (DETECT_OBJECTS, "model"): save_tiny_object_detector,
    (EMBED_TEXT, "model"): save_tiny_sentences,
    (EMBED_PICTURES, "model"): save_tiny_pictures,
}
"""(task, role) -> what saves a model of the class that the registry's checkpoint has."""


def fill_models_folder(folder: Path, profile: str, *, without: tuple[str, ...] = ()) -> Path:
    """Every checkpoint of the profile, except for the roles in ``without``."""
    for task, row in REGISTRY[profile].items():
        for role, checkpoint in row.weights.items():
            if role in without or row.shares or not isinstance(checkpoint, Checkpoint):
                continue
            place = folder / checkpoint.identity
            place.mkdir(parents=True, exist_ok=True)
            on_ctranslate2 = "model.bin" in checkpoint.files
            save = save_tiny_ctranslate2_whisper if on_ctranslate2 else SAVERS[task, role]
            save(place)
            checkpoint.adopt(folder)
    return folder
