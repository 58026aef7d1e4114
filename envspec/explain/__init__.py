"""Why a lock is as it is, from the lock alone: nothing is resolved or fetched."""
