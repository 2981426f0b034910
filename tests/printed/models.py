"""Which printed costs make up a layer, and the layers a model: section 6 and table 2 of Pau & Aymone 2024.

`PARTS` has every equation by (layer, macro-operation, name of the equation), `LAYERS` the printed totals by (layer,
macro-operation). Section 6 is transcribed term by term; totals of deeper models are assembled, they are not printed.
"""

from __future__ import annotations

from collections.abc import Callable

from printed import equations as e
from printed.equations import Cost, total

CostOf = Callable[..., Cost]
PHASES_OF_A_STEP = ("forward", "backward", "weight_update", "error_projection")

PARTS: dict[tuple[str, str, str], CostOf] = {
    ("embedding", "forward", "(unnumbered) E = T W_emb"): e.cost_embedding,
    ("embedding", "weight_update", "(unnumbered, not printed)"): e.cost_embedding_update,
    ("positions", "forward", "(unnumbered)"): e.cost_positions,
    ("mha", "forward", "(2)"): e.cost_2,
    ("mha", "forward", "(3)"): e.cost_3,
    ("mha", "forward", "(4)"): e.cost_4,
    ("mha", "backward", "(22)"): e.cost_22,
    ("mha", "weight_update", "(23)"): e.cost_23,
    ("mha", "backward", "(24)"): e.cost_24,
    ("mha", "backward", "(25)-(26)"): e.cost_25_26,
    ("mha", "weight_update", "(27)"): e.cost_27,
    ("mha", "backward", "(28)"): e.cost_28,
    ("mha", "backward", "(29)"): e.cost_29,
    ("mha", "backward", "(30)"): e.cost_30,
    ("mha", "backward", "(31)-(32)"): e.cost_31_32,
    ("mha", "weight_update", "(33)"): e.cost_33,
    ("mha", "backward", "(34)"): e.cost_34,
    ("mha", "backward", "(35)-(36)"): e.cost_35_36,
    ("mha", "weight_update", "(37)"): e.cost_37,
    ("mha", "backward", "(text after 37)"): e.cost_merging,
    ("ffn", "forward", "(38)"): e.cost_38,
    ("ffn", "backward", "(38) backward, not printed"): e.cost_38_backward,
    ("ffn", "weight_update", "(38) update, not printed"): e.cost_38_update,
    ("add_norm", "forward", "(39)-(40)"): e.cost_39_40,
    ("add_norm", "weight_update", "(41)"): e.cost_41,
    ("add_norm", "weight_update", "(42)"): e.cost_42,
    ("add_norm", "backward", "(43)"): e.cost_43,
    ("add_norm", "backward", "(unnumbered) jac_i"): e.cost_jacobian,
    ("add_norm", "backward", "(44)"): e.cost_44,
    ("add_norm", "backward", "(unnumbered) skip"): e.cost_skip,
    ("softmax", "forward", "(45)"): e.cost_45,
    ("softmax", "backward", "(unnumbered) dL/dz"): e.cost_output_error,
    ("softmax", "backward", "(46)"): e.cost_46,
    ("softmax", "weight_update", "(47)"): e.cost_47,
    ("error_projection", "error_projection", "(48)"): e.cost_48,
}


def nothing(**_: int) -> Cost:
    """Section 5.1.2: no computation is needed."""
    return Cost(0, 0)


LAYERS: dict[tuple[str, str], CostOf] = {
    ("embedding", "forward"): e.cost_embedding,
    ("embedding", "backward"): nothing,
    ("embedding", "weight_update"): e.cost_embedding_update,
    ("mha", "forward"): e.cost_mha_forward,
    ("mha", "backward"): e.cost_mha_backward,
    ("mha", "weight_update"): e.cost_mha_update,
    ("ffn", "forward"): e.cost_38,
    ("ffn", "backward"): e.cost_38_backward,
    ("ffn", "weight_update"): e.cost_38_update,
    ("add_norm", "forward"): e.cost_39_40,
    ("add_norm", "backward"): e.cost_add_norm_backward,
    ("add_norm", "weight_update"): e.cost_add_norm_update,
    ("softmax", "forward"): e.cost_45,
    ("softmax", "backward"): e.cost_46,
    ("softmax", "weight_update"): e.cost_47,
    ("error_projection", "error_projection"): e.cost_48,
}


def right_mha_backward(*, M: int, N: int, d_model: int, h: int, **_: int) -> Cost:
    """Not printed: the total with the slice product as M*N*N*h and with equation (28)."""
    return Cost(
        2 * M * d_model * d_model + 2 * N * d_model * d_model + 4 * M * N * d_model + M * N * N * h,
        4 * M * d_model * d_model + 4 * N * d_model * d_model + 8 * M * N * d_model + 3 * M * N * N * h + M * N * h,
    )


CORRECTED = {**LAYERS, ("mha", "backward"): right_mha_backward}


# Table 2: how often each macro-operation runs, in the order of MACROS
PASSES = {"BP": (1, 1, 1, 0), "PEPITA": (2, 0, 1, 1), "MEMPEPITA": (3, 0, 1, 1)}


# Section 6: MACCs of one block, an encoder alone


def section_6_forward(*, M: int, N: int, d_model: int, d_ff: int, voc: int, **_: int) -> int:
    return (
        M * voc * d_model
        + (2 * M * d_model**2 + 2 * M * N * d_model + 2 * N * d_model**2)
        + 0
        + 2 * M * d_model * d_ff
        + 0
        + M * d_model * voc
    )


def section_6_backward(*, M: int, N: int, d_model: int, d_ff: int, h: int, voc: int, **_: int) -> int:
    return (
        0
        + (2 * M * d_model * d_model + 2 * N * d_model * d_model + 4 * M * N * d_model + M * N * M * h)
        + M * d_model * d_model
        + 2 * M * d_model * d_ff
        + M * d_model * d_model
        + d_model * M * voc
    )


def section_6_update(*, M: int, N: int, d_model: int, d_ff: int, voc: int, **_: int) -> int:
    return (
        M * voc * d_model
        + (2 * M * d_model**2 + 2 * N * d_model**2)
        + M * d_model
        + 2 * M * d_model * d_ff
        + M * d_model
        + M * voc * d_model
    )


def section_6_total(procedure: str, **sizes: int) -> int:
    forward, backward, update = section_6_forward(**sizes), section_6_backward(**sizes), section_6_update(**sizes)
    match procedure:
        case "BP":  # the first term of the update shall be discarded
            return forward + backward + update - sizes["M"] * sizes["voc"] * sizes["d_model"]
        case "PEPITA":
            return 2 * forward + update
        case _:
            return 3 * forward + update


# Assembled from the totals of the layers


def encoder_only(phase: str, layers: dict[tuple[str, str], CostOf] = LAYERS, n_enc: int = 1, **sizes: int) -> Cost:
    """n_enc blocks; with the embedding's update, without an error projection."""
    if phase == "error_projection":
        return Cost(0, 0)
    mha, add_norm, ffn = (layers[layer, phase](**sizes) for layer in ("mha", "add_norm", "ffn"))
    ends = [layers[layer, phase](**sizes) for layer in ("embedding", "softmax")]
    return total([*ends, n_enc * total([mha, add_norm, ffn, add_norm])])


def encoder_decoder(
    phase: str, layers: dict[tuple[str, str], CostOf] = LAYERS, *, n_enc: int, n_dec: int, **sizes: int
) -> Cost:
    """N tokens through n_enc blocks, M through n_dec blocks; with both embeddings' updates."""
    if phase == "error_projection":
        return layers["error_projection", phase](**sizes)
    of_encoder = {**sizes, "M": sizes["N"]}
    of_decoder = {**sizes, "N": sizes["M"]}

    def cost(layer: str, at: dict[str, int]) -> Cost:
        return layers[layer, phase](**at)

    encoder_block = [cost("mha", of_encoder), cost("ffn", of_encoder), 2 * cost("add_norm", of_encoder)]
    decoder_block = [cost("mha", of_decoder), cost("mha", sizes), cost("ffn", sizes), 3 * cost("add_norm", sizes)]
    ends = [cost("embedding", of_encoder), cost("embedding", sizes), cost("softmax", sizes)]
    return total([*ends, n_enc * total(encoder_block), n_dec * total(decoder_block)])


def training(
    procedure: str,
    model: CostOf,
    layers: dict[tuple[str, str], CostOf] = LAYERS,
    **sizes: int,
) -> Cost:
    """A training step by table 2. Backpropagation does not update the embedding by a product."""
    if procedure == "BP":
        layers = {**layers, ("embedding", "weight_update"): nothing}
    return total(
        passes * model(phase, layers, **sizes)
        for phase, passes in zip(PHASES_OF_A_STEP, PASSES[procedure], strict=True)
        if passes
    )
