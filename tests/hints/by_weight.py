"""Maps weights to their hints without names of layers, to compare two sets of hints."""

from distir_ext.hints.resolution import resolve


def by_weight(hints, mod):
    """Layer type and hint of each weight; those of unknown layers are left out."""
    function = mod["main"]
    weights = [str(each.name) for each in list(function.params)[int(function.attrs["num_input"]) :]]
    return {
        weight.param: (layer.hint.layer_type, weight.hint)
        for layer in resolve(hints, weights)
        for weight in layer.weights
        if layer.hint.layer_type != "unknown"
    }
