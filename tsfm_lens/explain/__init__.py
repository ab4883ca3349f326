"""Why a forecast is what it is: which inputs moved it, on which routes, and whether that can be believed."""
