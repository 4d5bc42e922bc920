"""What a model says about a picture, drawn on it: boxes, points, masks, bars."""
