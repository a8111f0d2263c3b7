"""The parts of a layer, found by watching a run and proven by putting them together again.

Also what is measured with them: layers without some parts, the residual stream, the readout.
"""
