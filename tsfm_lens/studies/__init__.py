"""Studies on the core: papers, training recipes, rank theory, scores of methods. The
core never imports them.
"""
