"""Looking after a journal: `verify` finds what is wrong with it, `repair` mends that. `penstock journal` is their command line.

=============  ==============================================================================
`soundness`    whether a frame's columns can be read, behind right checksums
`examination`  one segment, byte by byte
`accounting`   which messages are gone, and what took them
`verify`       the whole directory
`repair`       mending it, with a copy of all that is removed
=============  ==============================================================================
"""

from penstock.checkup.examination import Finding
from penstock.checkup.repair import Action, Repair, repair
from penstock.checkup.verify import Checkup, verify

__all__ = ["Action", "Checkup", "Finding", "Repair", "repair", "verify"]
