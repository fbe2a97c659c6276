"""Early warning: trainings that diverge, noisy ones that do not, and how many steps ahead a monitor warns."""
