"""Draws a model's results on a picture: boxes, points, masks, bars."""
