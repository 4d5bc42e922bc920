"""Draws a model's results on a picture, as boxes, points, masks or bars."""
