#!/bin/sh
echo [secret TOKEN]
