"""What is known of a model: names of sites and tags, kinds of layers, parameters, nested tensors, selections."""
