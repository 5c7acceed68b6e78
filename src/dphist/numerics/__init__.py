"""Numbers without privacy: normal functions, quadrature, searches that err on the safe side, balls."""
