"""Messages -> prompt, through the model's own template in a killable child."""
