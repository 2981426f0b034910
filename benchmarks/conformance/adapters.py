"""The adapters: torch's own counter, fvcore, ptflops, thop, calflops and torchinfo; that of learncost is in tables.py.

Every one asks the counter as its documentation does. Where a counter's own breakdown tells matrix products from other
operations the adapter takes the products; what a counter adds to them without saying so stays in its answer.
"""

from __future__ import annotations

from typing import Any

from conformance.cases import Case
from conformance.counter import Counter, Unit
from conformance.tables import Learncost


class FlopCounterMode(Counter):
    """torch.utils.flop_counter: every operator that reaches the dispatcher, forward and backward."""

    package, unit, device = "torch", Unit.FLOP, "cpu"
    name = "torch on the CPU"
    reading = (
        "FlopCounterMode has no formula for the CPU kernel of scaled_dot_product_attention, forward or backward, "
        "nor for the fast path of nn.MultiheadAttention. It counts the backward pass that autograd runs, so frozen "
        "weights are right. The gradient of a grouped convolution's weight is counted as if there were no groups."
    )

    def forward(self, case: Case) -> int:
        """The module called once."""
        return self._count(case, backward=False)

    def training(self, case: Case) -> int:
        """The module called, and the backward pass of the sum of what it gave."""
        return self._count(case, backward=True)

    def _count(self, case: Case, backward: bool) -> int:
        from torch.utils.flop_counter import FlopCounterMode as Mode

        model, inputs = case.built(self.device)
        with Mode(display=False) as counter:
            result = model(**inputs)
            if backward:
                result.sum().backward()
        return int(counter.get_total_flops())


class FlopCounterModeOnMeta(FlopCounterMode):
    """The same on the device `meta`, where nothing is computed and attention is decomposed into its products."""

    name, device = "torch on meta", "meta"
    reading = (
        "On the device meta, attention is decomposed into its products, and all of them are counted. Data-dependent "
        "operations, such as the routing of a mixture of experts, cannot run there. The gradient of a grouped "
        "convolution's weight is counted as if there were no groups."
    )


class Fvcore(Counter):
    """fvcore: a trace of the module, operator by operator. Its own breakdown tells norms from products."""

    name, package, unit = "fvcore", "fvcore", Unit.MAC_CALLED_FLOP
    reading = (
        "It has no rule for scaled_dot_product_attention and baddbmm and lists them among the unsupported "
        "operators. It counts einsum through NumPy's report, which is rounded to four digits. Its total includes "
        "norms; the adapter subtracts them by its own breakdown. Its FLOP is a MACC."
    )

    def forward(self, case: Case) -> int:
        """All operators but the norms."""
        from fvcore.nn import FlopCountAnalysis

        model, inputs = case.built()
        analysis = FlopCountAnalysis(model, tuple(inputs.values()))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        return int(sum(count for operator, count in analysis.by_operator().items() if "norm" not in operator))

    def parameters(self, case: Case) -> int:
        """parameter_count of the whole module."""
        from fvcore.nn import parameter_count

        return int(parameter_count(case.built()[0])[""])


class Ptflops(Counter):
    """ptflops, back end `aten`: the operators that reach the dispatcher."""

    name, package, unit, backend = "ptflops aten", "ptflops", Unit.MAC, "aten"
    reading = (
        "addmm is counted with the additions of its bias. baddbmm and scaled_dot_product_attention have no rule. "
        "Parameters are trainable parameters only."
    )

    def forward(self, case: Case) -> int:
        """Its MACs."""
        return self._ask(case)[0]

    def parameters(self, case: Case) -> int:
        """Its parameters."""
        return self._ask(case)[1]

    def _ask(self, case: Case) -> tuple[int, int]:
        from ptflops import get_model_complexity_info

        model, inputs = case.built()
        maccs, parameters = get_model_complexity_info(
            model,
            (1,),
            input_constructor=lambda _: inputs,
            as_strings=False,
            print_per_layer_stat=False,
            backend=self.backend,
        )
        if maccs is None:
            raise RuntimeError("no answer (the error is printed, not raised)")
        return int(maccs), int(parameters)


class PtflopsPytorch(Ptflops):
    """ptflops, back end `pytorch`: hooks on modules and some patched functions."""

    name, backend = "ptflops pytorch", "pytorch"
    reading = (
        "Biases, norms, activations, additions and multiplications are added to the products. @, einsum and "
        "scaled_dot_product_attention are not counted. nn.MultiheadAttention has a separate rule, and its products "
        "are counted twice where it calls patched functions. Parameters are trainable parameters only. Its own "
        "documentation advises against it for transformers."
    )


class Thop(Counter):
    """thop: hooks on modules of known types."""

    name, package, unit = "thop", "thop", Unit.MAC
    reading = (
        "It counts modules, not functions, and attention's products are in none of them. Norms are added. Modules "
        "of a type without a rule, such as nn.Embedding and nn.MultiheadAttention, add neither MACs nor parameters."
    )

    def forward(self, case: Case) -> int:
        """Its MACs."""
        return self._ask(case)[0]

    def parameters(self, case: Case) -> int:
        """Its parameters."""
        return self._ask(case)[1]

    def _ask(self, case: Case) -> tuple[int, int]:
        from thop import profile

        model, inputs = case.built()
        maccs, parameters = profile(model, inputs=tuple(inputs.values()), verbose=False)
        return int(maccs), int(parameters)


class Calflops(Counter):
    """calflops: functions of torch patched while the module runs. Its training is three times its forward pass."""

    name, package, unit = "calflops", "calflops", Unit.MAC
    reading = (
        "torch.matmul is patched; @, bmm, einsum and scaled_dot_product_attention are not, or give no MACs. "
        "Training is three times the forward pass, also for frozen weights. Parameters are trainable parameters "
        "only."
    )

    def forward(self, case: Case) -> int:
        """Its MACs."""
        return self._ask(case)[0]

    def training(self, case: Case) -> int:
        """Its MACs with include_backPropagation."""
        return self._ask(case, backward=True)[0]

    def parameters(self, case: Case) -> int:
        """Its parameters."""
        return self._ask(case)[1]

    def _ask(self, case: Case, backward: bool = False) -> tuple[int, int]:
        from calflops import calculate_flops

        model, inputs = case.built()
        _, maccs, parameters = calculate_flops(
            model,
            kwargs=inputs,
            include_backPropagation=backward,
            print_results=False,
            output_as_string=False,
        )
        return int(maccs), int(parameters)


class Torchinfo(Counter):
    """torchinfo: a summary of the modules, with multiply-adds."""

    name, package, unit = "torchinfo", "torchinfo", Unit.MAC
    reading = (
        "Multiply-adds are parameters, biases and gains included, times the first axis of the output: the tokens of "
        "a sequence are omitted. An embedding counts as a product, attention's products do not. A matrix that two "
        "modules share is counted twice."
    )

    def forward(self, case: Case) -> int:
        """Its total multiply-adds."""
        return int(self._ask(case).total_mult_adds)

    def parameters(self, case: Case) -> int:
        """Its total parameters."""
        return int(self._ask(case).total_params)

    def trained(self, case: Case) -> int:
        """Its trainable parameters."""
        return int(self._ask(case).trainable_params)

    def _ask(self, case: Case) -> Any:
        from torchinfo import summary

        model, inputs = case.built()
        return summary(model, input_data=inputs, verbose=0)


COUNTERS: dict[str, Counter] = {
    counter.name: counter
    for counter in (
        Learncost(),
        FlopCounterModeOnMeta(),
        FlopCounterMode(),
        Fvcore(),
        Ptflops(),
        PtflopsPytorch(),
        Thop(),
        Calflops(),
        Torchinfo(),
    )
}
"""Every counter by its name; an adapter of your own is one more."""
