"""What stills and frames show, in networks on onnxruntime: objects, content, where shots end.

Task ``detect_objects`` finds objects of COCO's 80 classes by SSD-MobileNetV2 (Sandler et al. 2018).
The network sees a still at 300 x 300 pixels. OpenCV's dnn reads its weights but takes 2.5 times as
long to run it, half of that in the convolutions that give the classes. What it is in doubt about
is looked at a second time, in a square around it (of a picture that is about square: mirrored), and
the mean of both confidences decides. Fruit,
balls and lamps must be seen in the grey picture too: red and green sweets are an apple, yellow
icing a banana, by their colour alone. On 79 stills of ``benchmarks/things.toml`` that are for
tuning, one look has a precision of 0.83 from 0.6 on, the mean of two 0.90, and it finds as much.

Task ``classify_content`` is open_nsfw. Task ``detect_boundaries`` is TransNetV2 (T. Souček, J.
Lokoč, "TransNet V2: An effective deep network architecture for fast shot transition detection",
2020, arXiv:2008.04838): three stacks of dilated (2+1)-dimensional convolutions over tiny pictures,
beside them the similarity of each frame to its 100 neighbours in learned features and in colour
histograms. Only the published weights for PyTorch are used, which are read without it: the
convolutions become a graph of ONNX when the detector is opened, the layers after them are NumPy. A
frame takes 9 ms of one core.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from models.backends import Backend
from models.backends.packaged import Graph, Network, Tensor, Tensors, read_tensors
from models.contracts import (
    BOUNDARY_HEIGHT,
    BOUNDARY_WIDTH,
    BoundaryPictures,
    Box,
    DetectedObject,
    Picture,
    Probabilities,
)
from models.weights import WeightsError

_SIDE_PX = 300
_CANDIDATE = 0.4
"""What has less at the first look is not looked at again."""
_CERTAIN = 0.9
"""Nor is what has this: the second look confirmed all of these in the tuning stills."""
_MOST_SECOND_LOOKS = 3
"""A still, the most confident first; what is left of the doubtful is dropped."""
_LEAST_CONTRAST = 4.0
"""Standard deviation of a picture's levels; nothing is in plainer ones."""
_SQUARE = 1.25
"""Ratio of the sides up to which a square shows nothing larger than the whole."""
_SAME_PLACE, _SAME_OBJECT, _OTHER_OBJECT = 0.3, 0.5, 0.7
"""Overlap of an object's boxes in both looks, from which two boxes of a class are one object, and
from which boxes of two classes are: the cup and the bottle, the dog and the cat in one place."""
_SAME_CANDIDATE = 0.6
"""And from which boxes of a class in one look are one, as the published network has it."""
_PART = 0.8
"""Share of a box inside another of its class from which it is a part of that object."""

_LIKELY, _LOOKALIKES = 0.55, 0.8
_USUAL = 0.65
"""Least mean confidence by class. Taken for each other, or for what has no class (fruit, balls,
boxes, signs), are: the lookalikes; people and vehicles seldom are."""

CLASSES = {
    _LIKELY: {
        1: "person", 2: "bicycle", 3: "car", 4: "motorcycle", 5: "airplane", 6: "bus", 7: "train",
        8: "truck", 9: "boat", 17: "cat", 18: "dog", 19: "horse", 21: "cow", 22: "elephant",
        24: "zebra", 25: "giraffe", 65: "bed", 73: "laptop", 72: "tv", 76: "keyboard",
    },
    _USUAL: {
        10: "traffic light", 11: "fire hydrant", 13: "stop sign", 14: "parking meter", 16: "bird",
        20: "sheep", 27: "backpack", 28: "umbrella", 32: "tie", 35: "skis", 36: "snowboard",
        37: "sports ball", 39: "baseball bat", 40: "baseball glove", 41: "skateboard",
        42: "surfboard", 43: "tennis racket", 44: "bottle", 46: "wine glass", 47: "cup",
        48: "fork", 51: "bowl", 56: "broccoli", 58: "hot dog", 59: "pizza", 60: "donut",
        62: "chair", 63: "couch", 64: "potted plant", 67: "dining table", 70: "toilet",
        78: "microwave", 79: "oven", 81: "sink", 82: "refrigerator", 84: "book",
        77: "cell phone", 88: "teddy bear",
    },
    _LOOKALIKES: {
        15: "bench", 23: "bear", 31: "handbag", 33: "suitcase", 34: "frisbee", 38: "kite",
        49: "knife", 50: "spoon", 52: "banana", 53: "apple", 54: "sandwich", 55: "orange",
        57: "carrot", 61: "cake", 74: "mouse", 75: "remote", 80: "toaster", 85: "clock",
        86: "vase", 87: "scissors", 89: "hair drier", 90: "toothbrush",
    },
}  # fmt: skip
"""Least confidence -> number in the network -> class."""
_NAMES = {number: name for names in CLASSES.values() for number, name in names.items()}
_LEAST = {name: least for least, names in CLASSES.items() for name in names.values()}
_EVERY = tuple(_LEAST)
_ONLY_BESIDE = {"mouse": frozenset({"keyboard", "laptop", "tv"})}
"""Classes that are taken for others unless one of these is in the picture too."""

_BY_COLOUR = frozenset(
    {
        "traffic light", "sports ball", "frisbee", "kite", "banana", "apple", "orange", "carrot",
        "broccoli", "donut",
    }
)  # fmt: skip
"""Classes of plain shapes, which the network names by their colours where these are all it sees."""
_ANY_WAY_ROUND = frozenset({"cell phone"})
"""Classes of what lies any way round, and is seen so when the picture of it is turned: phones with
0.98 and 1.00; cars from above, which are taken for phones with 0.99, are not."""
_AROUND = 1.6
"""Side of the square that is turned, over the longer one of the object."""


def open_object_detector(row: Backend, models_dir: Path | None) -> PackagedObjectDetector:
    """The detector with its verified weights. Raises WeightsError."""
    return PackagedObjectDetector(*row.packaged().paths(models_dir).values())


class PackagedObjectDetector:
    """ObjectDetector. Deterministic; any thread may call; on one core."""

    def __init__(self, graph: Path, layers: Path) -> None:
        """``graph`` holds the weights, ``layers`` what OpenCV makes of their post-processing.
        Raises WeightsError where this machine cannot run it."""
        cv2.setNumThreads(1)
        (self._session, heads), self._places = _detector_session(graph, layers), _places()
        self._scorers = functools.cache(lambda names: [_scorer(head, names) for head in heads])
        self._scorers(_EVERY)

    def find(self, stills: Sequence[Picture]) -> list[tuple[DetectedObject, ...]]:
        return [self._find(still) for still in stills]

    def _find(self, still: Picture) -> tuple[DetectedObject, ...]:
        small = cv2.resize(still, (32, 18), interpolation=cv2.INTER_AREA)
        if float(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).std()) < _LEAST_CONTRAST:
            return ()
        looks = _MOST_SECOND_LOOKS
        sure: list[DetectedObject] = []
        for item in _distinct(self._look(still)):
            is_another = any(each.label == item.label for each in sure)
            if is_another or item.confidence >= _CERTAIN:
                sure.append(item)
            elif looks:
                looks -= 1
                if (item.confidence + 1) / 2 >= _LEAST[item.label]:
                    sure.append(replace(item, confidence=self._confirmed(still, item)))
        sure = [
            item
            for item in sure
            if item.confidence >= _LEAST[item.label]
            and (item.label not in _ANY_WAY_ROUND or self._is_seen_turned(still, item))
        ]
        sure = self._in_grey_too(still, sure)
        sure = _distinct(sorted(sure, key=lambda each: -each.confidence), _OTHER_OBJECT)
        labels = {item.label for item in sure}
        return tuple(each for each in sure if _ONLY_BESIDE.get(each.label, labels) & labels)

    def _look(self, picture: Picture, names: Sequence[str] = _EVERY) -> list[DetectedObject]:
        """Candidates of these classes, the most confident first."""
        size = (_SIDE_PX, _SIDE_PX)
        shrinks = min(picture.shape[:2]) > _SIDE_PX
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        square = cv2.resize(picture, size, interpolation=how)
        *seen, rest, moves = self._session.run(None, {"pictures": square[None]})
        pairs = zip(self._scorers(names), seen, strict=True)
        large = [scorer.run(None, {"seen": own})[0][0] for scorer, own in pairs]
        scores = np.concatenate([*large, rest[0][:, [_EVERY.index(it) for it in names]]])
        moves, found = moves[0], []
        for at, name in enumerate(names):
            own = np.flatnonzero(scores[:, at] >= _CANDIDATE)
            if not len(own):
                continue
            corners, confidences = _moved(self._places[own], moves[own]), scores[own, at]
            boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
            least = _CANDIDATE, _SAME_CANDIDATE
            for kept in cv2.dnn.NMSBoxes(boxes.tolist(), confidences.tolist(), *least):
                left, top, right, bottom = np.clip(corners[kept], 0, 1).tolist()
                box = Box(left, top, right - left, bottom - top)
                if box.width > 0 and box.height > 0:
                    found.append(DetectedObject(name, min(1.0, float(confidences[kept])), box))
        return sorted(found, key=lambda each: -each.confidence)

    def _in_grey_too(self, still: Picture, found: Sequence[DetectedObject]) -> list[DetectedObject]:
        """Those that the picture shows without its colours as well, of classes that these make."""
        if not any(item.label in _BY_COLOUR for item in found):
            return list(found)
        grey = cv2.cvtColor(still, cv2.COLOR_RGB2GRAY)
        looked = self._look(cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), tuple(_BY_COLOUR))
        return [
            item
            for item in found
            if item.label not in _BY_COLOUR
            or any(
                each.label == item.label and each.box.overlap(item.box) >= _SAME_PLACE
                for each in looked
            )
        ]

    def _is_seen_turned(self, still: Picture, item: DetectedObject) -> bool:
        """Whether the square around it shows such an object when it is turned by 90 degrees."""
        rows, columns = still.shape[:2]
        box = item.box
        x, y = (box.left + box.width / 2) * columns, (box.top + box.height / 2) * rows
        half = _AROUND / 2 * max(box.width * columns, box.height * rows)
        top, left = max(0, int(y - half)), max(0, int(x - half))
        part = still[top : int(y + half) + 1, left : int(x + half) + 1]
        turned = np.ascontiguousarray(np.rot90(part))
        return any(each.label == item.label for each in self._look(turned, (item.label,)))

    def _confirmed(self, still: Picture, item: DetectedObject) -> float:
        """The mean of the confidence and that of a second look; 0 there if it is not seen."""
        rows, columns = still.shape[:2]
        side = min(rows, columns)
        if max(rows, columns) <= _SQUARE * side:
            looked = self._look(np.ascontiguousarray(still[:, ::-1]), (item.label,))
            box = item.box
            expected = replace(box, left=1 - box.left - box.width)
        else:
            middle = item.box.left + item.box.width / 2, item.box.top + item.box.height / 2
            x = int(np.clip(middle[0] * columns - side / 2, 0, columns - side))
            y = int(np.clip(middle[1] * rows - side / 2, 0, rows - side))
            square = np.ascontiguousarray(still[y : y + side, x : x + side])
            looked = self._look(square, (item.label,))
            expected = item.box.within(Box(x / columns, y / rows, side / columns, side / rows))
        again = (
            each.confidence
            for each in looked
            if each.label == item.label and each.box.overlap(expected) >= _SAME_PLACE
        )
        return (item.confidence + max(again, default=0.0)) / 2


def _moved(places: Tensor, moves: Tensor) -> Tensor:
    """Boxes (n, 4) by their corners: ``places`` moved and resized by the network's ``moves``,
    with the variances of Liu et al., "SSD", 2016."""
    sizes = places[:, 2:] - places[:, :2]
    middles = places[:, :2] + sizes / 2 + 0.1 * moves[:, :2] * sizes
    halves = np.exp(0.2 * moves[:, 2:]) * sizes / 2
    return np.concatenate([middles - halves, middles + halves], axis=1)


_CLASSES, _EPSILON = 91, 1e-3
"""With the background; what batch normalisation adds to variances."""

_CELLS = 19, 10, 5, 3, 2, 1
_SIZES = 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0


def _places() -> Tensor:
    """The boxes (1917, 4) about which objects are looked for, by their corners: in each cell of six
    grids, six of different shapes, in the first three, as in Liu et al., "SSD", 2016."""
    grids: list[Tensor] = []
    for cells, size, larger in zip(_CELLS, _SIZES[:-1], _SIZES[1:], strict=True):
        shapes = [(size, 1.0), (size, 2.0), (size, 1 / 2), (size, 3.0), (size, 0.333)]
        shapes = [*shapes, ((size * larger) ** 0.5, 1.0)] if grids else [(0.1, 1.0), *shapes[1:3]]
        halves = [(own * ratio**0.5 / 2, own / ratio**0.5 / 2) for own, ratio in shapes]
        across, down = np.meshgrid(*[(np.arange(cells) + 0.5) / cells] * 2)
        middles = np.stack([across, down], axis=-1)[:, :, None]
        corners = [middles - halves, middles + halves]
        grids.append(np.concatenate(corners, axis=-1).reshape(-1, 4))
    return np.concatenate(grids).astype(np.float32)


_LARGE_GRIDS = 2
"""The probabilities of 80 classes in their cells take half of the work; a second look at an object
needs those of one class."""


def _detector_session(graph_file: Path, layers_file: Path) -> tuple[Any, list[list[Tensor]]]:
    """The network, as OpenCV reads it, in ONNX: pictures (n, 300, 300, 3) to what is seen in the
    cells of the largest grids, to the probabilities of the classes in ``_NAMES`` at all other
    places (n, 234, 80), and to ``moves`` (n, 1917, 4) of all. Beside it, for each large grid, the
    weights (places of a cell, classes, channels, 3, 3) of its classes, and what is added. Of other
    classes none is reported, and they are a ninth of the work.

    Its layers are in the order in which they are applied; what OpenCV does not state of them is the
    same in all: TensorFlow's padding, and sums with what a block of layers begins with.
    """
    from onnx import TensorProto

    network = cv2.dnn.readNetFromTensorflow(str(graph_file), str(layers_file))
    numbers, ins, outs = network.getLayersShapes((1, 3, _SIDE_PX, _SIDE_PX))
    strides = {
        int(number): -(-own[0][-1] // into[0][-1])
        for number, own, into in zip(np.ravel(numbers), ins, outs, strict=True)
    }
    layers = [network.getLayer(number + 1) for number in range(len(network.getLayerNames()))]
    graph = Graph()
    seen = graph.add("Cast", "pictures", to=TensorProto.FLOAT)
    seen = graph.add("Mul", seen, np.array(2 / 255, np.float32))
    seen = graph.add("Sub", seen, np.array(1, np.float32))
    seen = begun = graph.add("Transpose", seen, perm=[0, 3, 1, 2])
    heads: dict[int, list[str]] = {len(_NAMES): [], 4: []}
    seen_in, scoring = list[str](), list[list[Tensor]]()
    for number, (layer, after) in enumerate(zip(layers, [*layers[1:], None], strict=True), 1):
        if layer.type == "ReLU6":
            seen = graph.add("Clip", seen, np.array(0, np.float32), np.array(6, np.float32))
        elif layer.type == "Eltwise":
            seen = graph.add("Add", begun, seen)
        elif layer.type == "Convolution":
            if "/expand/" in layer.name:
                begun = seen
            weights, shift = _convolution(layer, after)
            kind = 4
            if "/ClassPredictor/" in layer.name:
                kind = len(_NAMES)
                named = np.arange(len(weights)).reshape(-1, _CLASSES)[:, [*_NAMES]]
                weights, shift = weights[named], shift[named]
                if len(scoring) < _LARGE_GRIDS:
                    seen_in.append(seen)
                    scoring.append([weights, shift])
                    continue
                weights, shift = weights.reshape(-1, *weights.shape[2:]), shift.ravel()
            how = {"strides": [strides[number]] * 2, "auto_pad": "SAME_UPPER"}
            groups = len(weights) if weights.shape[1] == 1 else 1
            made = graph.add("Conv", seen, weights, shift, group=groups, **how)
            if not layer.name.startswith("BoxPredictor"):
                seen = made
                continue
            made = graph.add("Transpose", made, perm=[0, 2, 3, 1])
            heads[kind].append(graph.add("Reshape", made, np.array([0, -1, kind])))
    classes, moves = (graph.add("Concat", *own, axis=1) for own in heads.values())
    outputs = *seen_in, graph.add("Sigmoid", classes), moves
    del network, layers
    return graph.session(["n", _SIDE_PX, _SIDE_PX, 3], outputs), scoring


def _scorer(head: Sequence[Tensor], names: Sequence[str]) -> Any:
    """What is seen in the cells of a grid to the probabilities of these classes at its places."""
    graph, own = Graph(), [_EVERY.index(it) for it in names]
    weights, shift = (each[:, own].reshape(-1, *each.shape[2:]) for each in head)
    made = graph.add("Conv", "seen", weights, shift, auto_pad="SAME_UPPER")
    made = graph.add("Transpose", made, perm=[0, 2, 3, 1])
    made = graph.add("Reshape", made, np.array([0, -1, len(own)]))
    shape = ["n", weights.shape[1], "rows", "columns"]
    return graph.session(shape, [graph.add("Sigmoid", made)], name="seen", kind=np.float32)


def _convolution(layer: Any, after: Any) -> tuple[Tensor, Tensor]:
    """Its weights and what is added, with the normalisation in them that may come after it."""
    weights, *shifts = (np.array(each, np.float32) for each in layer.blobs)
    if after.type != "BatchNorm":
        return weights, shifts[0].ravel()
    mean, variance, scale, shift = (np.array(each, np.float32).ravel() for each in after.blobs)
    scale = scale / np.sqrt(variance + _EPSILON)
    return weights * scale[:, None, None, None], shift - mean * scale


def _distinct(found: Sequence[DetectedObject], other: float = 2.0) -> list[DetectedObject]:
    """Without further boxes of an object, which the network leaves where they overlap little or one
    is a part (a neck, a wheel); of another class where they overlap by ``other``."""
    kept: list[DetectedObject] = []
    for each in found:
        for one in kept:
            overlap, least = each.box.overlap(one.box), other
            if one.label == each.label:
                # People stand before each other, so a box inside another may be somebody.
                is_part = each.label != "person" and _share_inside(each.box, one.box) >= _PART
                least = 0.0 if is_part else _SAME_OBJECT
            if overlap >= least:
                break
        else:
            kept.append(each)
    return kept


def _share_inside(box: Box, other: Box) -> float:
    """How much of the smaller of two boxes lies in the other, 0 to 1."""
    areas = box.width * box.height, other.width * other.height
    shared = box.overlap(other) * sum(areas) / (1 + box.overlap(other))
    return shared / min(areas)


_WHOLE_PX, _MIDDLE_PX = 256, 224
"""The still is stretched to the first, square; its middle is classified."""
_MEAN_BGR = np.array([104, 117, 123], np.float32)


def open_classifier(row: Backend, models_dir: Path | None) -> PackagedContentClassifier:
    """The classifier with its verified weights. Raises WeightsError."""
    [path] = row.packaged().paths(models_dir).values()
    return PackagedContentClassifier(Network(path))


class PackagedContentClassifier:
    """ContentClassifier. Deterministic; one still at a time, on one core."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def classify(self, stills: Sequence[Picture]) -> list[dict[str, float]]:
        edge, found = (_WHOLE_PX - _MIDDLE_PX) // 2, []
        for still in stills:
            whole = cv2.resize(still, (_WHOLE_PX, _WHOLE_PX), interpolation=cv2.INTER_AREA)
            middle = whole[edge : edge + _MIDDLE_PX, edge : edge + _MIDDLE_PX, ::-1]
            # (1, 224, 224, 3), BGR less the training pictures' mean.
            tensor = np.ascontiguousarray(middle.astype(np.float32) - _MEAN_BGR)[None]
            normal, nsfw = self._network(tensor)[0][0]
            found.append({"normal": float(normal), "nsfw": float(nsfw)})
        return found


_FILTERS = (16, 32, 64)
_DILATIONS = (1, 2, 4, 8)
_LOOKUP = 101
_BINS = 512
_ADDED = 1e-3
"""Added to variances, as the published network's batch normalisation does."""


def open_boundary_detector(row: Backend, models_dir: Path | None) -> TransNetBoundaryDetector:
    """The detector with its verified weights. Raises WeightsError."""
    [weights] = row.packaged().read(models_dir).values()
    return TransNetBoundaryDetector(weights, row.session_bytes)


class TransNetBoundaryDetector:
    """BoundaryDetector. Deterministic; keeps no state between calls; on one core, or on a GPU."""

    def __init__(self, weights: bytes, gpu_bytes: int = 0) -> None:
        """From the file's bytes. Raises WeightsError."""
        tensors = read_tensors(weights)
        try:
            self._session = _boundary_session(tensors, gpu_bytes)
            self._layers = {
                name: (tensors[f"{name}.weight"].T, tensors[f"{name}.bias"])
                for name in (
                    "frame_sim_layer.projection", "frame_sim_layer.fc", "color_hist_layer.fc",
                    "fc1", "cls_layer1",
                )
            }  # fmt: skip
        except KeyError as error:
            raise WeightsError(f"The file holds no weights of TransNetV2: {error}") from error

    def detect_boundaries(self, frames: BoundaryPictures) -> Probabilities:
        if not len(frames):
            return np.empty(0, np.float32)
        own, means = self._session.run(None, {"pictures": frames})
        similar = _similarities(self._linear("frame_sim_layer.projection", means))
        alike = _similarities(_histograms(frames))
        seen = [
            np.maximum(self._linear("color_hist_layer.fc", alike), 0),
            np.maximum(self._linear("frame_sim_layer.fc", similar), 0),
            own,
        ]
        hidden = np.maximum(self._linear("fc1", np.concatenate(seen, axis=1)), 0)
        logits = self._linear("cls_layer1", hidden)[:, 0]
        return np.asarray(1 / (1 + np.exp(-logits)), np.float32)

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        weights, bias = self._layers[name]
        found: Tensor = rows @ weights + bias
        return found


def _histograms(frames: BoundaryPictures) -> Tensor:
    """How often each of 512 colours is in each frame."""
    coarse = frames.reshape(len(frames), -1, 3).astype(np.int64) >> 5
    bins = (coarse[..., 0] << 6) + (coarse[..., 1] << 3) + coarse[..., 2]
    return np.array([np.bincount(row, minlength=_BINS) for row in bins], np.float32)


def _similarities(vectors: Tensor) -> Tensor:
    """Cosines (frames, 101) with the frames from 50 before to 50 after; 0 where there is none."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(length, 1e-12)
    padded = np.pad(unit @ unit.T, ((0, 0), (_LOOKUP // 2, _LOOKUP // 2)))
    frames = np.arange(len(vectors))[:, None]
    near: Tensor = padded[frames, frames + np.arange(_LOOKUP)]
    return near


def _boundary_session(tensors: Tensors, gpu_bytes: int) -> Any:
    """The convolutions: frames to what is left of each (n, 4608), and the means over each stack's
    pictures (n, 448). A batch of pictures are the frames of a video: convolutions in space take it
    as it is."""
    from onnx import TensorProto

    graph = Graph()
    seen = graph.add("Cast", "pictures", to=TensorProto.FLOAT)
    seen = graph.add("Mul", seen, np.array(1 / 255, np.float32))
    seen = graph.add("Transpose", seen, perm=[0, 3, 1, 2])
    means = []
    for number, filters in enumerate(_FILTERS):
        first = _block(graph, tensors, f"SDDCNN.{number}.DDCNN.0", filters, seen)
        second = _block(graph, tensors, f"SDDCNN.{number}.DDCNN.1", filters, first)
        both = graph.add("Add", first, second)
        seen = graph.add("AveragePool", both, kernel_shape=[2, 2], strides=[2, 2])
        means.append(graph.add("ReduceMean", seen, np.array([2, 3]), keepdims=0))
    last = graph.add("Transpose", seen, perm=[0, 2, 3, 1])
    outputs = graph.add("Flatten", last), graph.add("Concat", *means, axis=1)
    return graph.session(["n", BOUNDARY_HEIGHT, BOUNDARY_WIDTH, 3], outputs, gpu_bytes)


def _block(graph: Graph, tensors: Tensors, name: str, filters: int, seen: str) -> str:
    """Convolutions in space, then in time, that reach 1, 2, 4 and 8 frames far, side by side. Those
    in time have the normalisation after them within."""
    scale = tensors[f"{name}.bn.weight"] / np.sqrt(tensors[f"{name}.bn.running_var"] + _ADDED)
    shift = tensors[f"{name}.bn.bias"] - tensors[f"{name}.bn.running_mean"] * scale
    parts = []
    for at, dilation in enumerate(_DILATIONS):
        layer, own = f"{name}.Conv3D_{dilation}.layers", slice(filters * at, filters * (at + 1))
        space = tensors[f"{layer}.0.weight"][:, :, 0]
        part = graph.add("Conv", seen, space, pads=[1, 1, 1, 1])
        # (n, channels, rows, columns) to (1, channels, n, rows, columns).
        part = graph.add("Transpose", part, perm=[1, 0, 2, 3])
        part = graph.add("Unsqueeze", part, np.array([0]))
        kernel = tensors[f"{layer}.1.weight"] * scale[own, None, None, None, None]
        reach = {"pads": [dilation, 0, 0, dilation, 0, 0], "dilations": [dilation, 1, 1]}
        parts.append(graph.add("Conv", part, kernel, shift[own], **reach))
    found = graph.add("Squeeze", graph.add("Concat", *parts, axis=1), np.array([0]))
    return graph.add("Relu", graph.add("Transpose", found, perm=[1, 0, 2, 3]))
