"""Other libraries' own tests, run with the stock trainer and with advreg's: ``make peers
PEERS=folder``.
"""
